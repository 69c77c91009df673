//! `cargo xtask filters why`: what a filter decides about one call, and which line says so.

use anyhow::{Context, bail};

use super::decide::{Decision, Decisions, Rule};
use super::source::{Place, nearest};
use super::table::{self, Arch};

/// What a filter decides about a call, and the line of source that says so.
#[derive(clap::Args)]
pub struct Args {
    /// The filter: provider, nested
    filter: String,
    /// The call, by name or number
    call: String,
    /// Its arguments: numbers, constants, or several joined by `|`. Those left out at the end are
    /// 0; with none at all, everything the call depends on is printed
    #[arg(allow_negative_numbers = true)]
    arguments: Vec<String>,
    /// The architecture
    #[arg(long, default_value_t = Arch::NATIVE)]
    arch: Arch,
}

/// Runs `cargo xtask filters why`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let source = super::load(&args.filter)?;
    let decisions = Decisions::new(&source, args.arch)?;
    let calls = args.arch.calls();
    let number = match calls.number(&args.call) {
        Some(number) => number,
        None => args.call.parse().ok().with_context(|| {
            let near = nearest(&args.call, calls.iter().map(|(_, name)| name));
            format!("no call of {} is named {}; {near}?", args.arch, args.call)
        })?,
    };
    let Some(decision) = decisions.calls.get(&number) else {
        println!("{number}: {}", decisions.unknown.action);
        println!("  {}: {}", decisions.unknown.place, decisions.unknown.reason);
        return Ok(());
    };
    if args.arguments.is_empty() {
        for rule in &decision.rules {
            print(decision, rule);
        }
        return Ok(());
    }
    let names = table::arguments(decision.call);
    if args.arguments.len() > names.len() {
        let names: Vec<&str> = names.iter().map(|argument| argument.name).collect();
        bail!("{} takes {}: {}", decision.call, names.len(), names.join(" "));
    }
    let mut registers = [0; 6];
    for (register, text) in registers.iter_mut().zip(&args.arguments) {
        *register = value(text, args.arch).with_context(|| {
            let near = nearest(text, table::constant_names());
            format!("{text} is neither a number nor a known constant; {near}?")
        })?;
    }
    print(decision, decision.rule(&registers));
    Ok(())
}

/// The value of numbers and constants joined by `|`.
pub fn value(text: &str, arch: Arch) -> Option<u64> {
    if let Some(positive) = text.strip_prefix('-') {
        return table::number(positive).map(u64::wrapping_neg);
    }
    let word = |word: &str| table::number(word).or_else(|| arch.constant(word));
    text.split('|').try_fold(0, |value, bits| Some(value | word(bits.trim())?))
}

fn print(decision: &Decision, rule: &Rule) {
    println!("{}: {rule}", decision.call);
    let verdict = &rule.clause.verdict;
    let because = |place: &Place, reason: &str| match reason {
        "" => println!("  {place}"),
        _ => println!("  {place}: {reason}"),
    };
    because(&verdict.place, &verdict.reason);
    match decision.by_number() {
        None => because(decision.place, &decision.entry.reason),
        Some(_) => because(decision.place, ""),
    }
    println!("  group {}", decision.entry.group);
}
