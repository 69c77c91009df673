//! Options that are defined when their subcommand is called.

use clap::builder::Resettable;
use clap::{ArgMatches, Args, Command, Error, FromArgMatches};

/// The options of one subcommand. To define those of all of them takes longer than
/// to read a command line, and every launch would wait for it.
#[derive(Debug)]
pub struct Deferred<T>(pub Box<T>);

impl<T: Args> Args for Deferred<T> {
    fn augment_args(command: Command) -> Command {
        command.defer(define::<T>)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Adds the options, and leaves the description that the subcommand has.
fn define<T: Args>(command: Command) -> Command {
    let (about, long_about) = (command.get_about().cloned(), command.get_long_about().cloned());
    T::augment_args(command).about(Resettable::from(about)).long_about(Resettable::from(long_about))
}

impl<T: FromArgMatches> FromArgMatches for Deferred<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Deferred<T>, Error> {
        Ok(Deferred(Box::new(T::from_arg_matches(matches)?)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }
}
