//! `${name}` and `${env:NAME}` in the strings of a policy file.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};

use super::error::Problem;

/// The launcher's environment, as a function so that tests can make one.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// What the names stand for.
pub struct Vars<'a> {
    values: BTreeMap<String, String>,
    env: Env<'a>,
    /// The names that were asked for.
    used: RefCell<BTreeSet<String>>,
}

impl<'a> Vars<'a> {
    /// The variables of `--var NAME=VALUE` and `--var NAME`; the last one of a
    /// name counts.
    ///
    /// # Errors
    ///
    /// A name that no `${…}` could hold; a value that is not UTF-8 or that the
    /// environment does not have.
    pub fn new(flags: &[OsString], env: Env<'a>) -> Result<Self, Problem> {
        let mut values = BTreeMap::new();
        for flag in flags {
            let text = utf8(flag)?;
            let (name, value) = match text.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                None => (text, environment(text, env)?),
            };
            if !is_name(name) {
                return Err(Problem::BadVariableName(name.to_owned()));
            }
            values.insert(name.to_owned(), value);
        }
        Ok(Vars { values, env, used: RefCell::default() })
    }

    /// The variables that no text has held.
    pub fn unused(&self) -> Vec<String> {
        let used = self.used.borrow();
        self.values.keys().filter(|name| !used.contains(*name)).cloned().collect()
    }

    /// The same, and `name` stands for `value`.
    pub fn with(&self, name: &str, value: &str) -> Vars<'a> {
        let mut values = self.values.clone();
        values.insert(name.to_owned(), value.to_owned());
        Vars { values, env: self.env, used: RefCell::default() }
    }

    /// `text` with every reference replaced; `None` when it holds none. What a
    /// variable holds is not looked at again.
    ///
    /// # Errors
    ///
    /// An undefined variable, or a dollar that begins no reference. But for
    /// `free_text`, which is no path: an empty one, and one inside the text that
    /// is not one name, as both lead elsewhere than the text says.
    pub fn expand(&self, text: &str, free_text: bool) -> Result<Option<String>, Problem> {
        if !text.contains('$') {
            return Ok(None);
        }
        let mut expanded = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('$') {
            expanded.push_str(before);
            if let Some(after) = after.strip_prefix('$') {
                expanded.push('$');
                rest = after;
                continue;
            }
            let (name, after) = after
                .strip_prefix('{')
                .and_then(|after| after.split_once('}'))
                .ok_or_else(|| Problem::BadReference(format!("${after}")))?;
            let value = self.value(name)?;
            if value.is_empty() && !free_text {
                return Err(Problem::EmptyVariable(name.to_owned()));
            }
            let leads = expanded.is_empty();
            if !leads && !free_text && !is_one_name(&value) {
                return Err(Problem::NotOneName(name.to_owned()));
            }
            expanded.push_str(&value);
            rest = after;
        }
        expanded.push_str(rest);
        Ok(Some(expanded))
    }

    fn value(&self, name: &str) -> Result<String, Problem> {
        if let Some(name) = name.strip_prefix("env:") {
            return environment(name, self.env);
        }
        if !is_name(name) {
            return Err(Problem::BadReference(format!("${{{name}}}")));
        }
        self.used.borrow_mut().insert(name.to_owned());
        let value = self.values.get(name);
        value.cloned().ok_or_else(|| Problem::UndefinedVariable(name.to_owned()))
    }
}

fn environment(name: &str, env: Env) -> Result<String, Problem> {
    let value = env(name).ok_or_else(|| Problem::UndefinedEnvironment(name.to_owned()))?;
    utf8(&value).map(str::to_owned)
}

fn is_name(name: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    !name.is_empty() && name.bytes().all(known)
}

/// Whether `value` stands for one entry of a directory, or a part of its name.
fn is_one_name(value: &str) -> bool {
    !value.contains('/') && value != "." && value != ".."
}

/// `text` as UTF-8.
///
/// # Errors
///
/// The offset of the first byte that is not.
pub fn utf8(text: &OsStr) -> Result<&str, Problem> {
    std::str::from_utf8(text.as_encoded_bytes())
        .map_err(|error| Problem::NotUtf8 { offset: error.valid_up_to() })
}

/// `text` so that [`Vars::expand`] gives it back.
pub fn escape(text: &str) -> String {
    text.replace('$', "$$")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<OsString> {
        match name {
            "HOME" => Some("/home/me".into()),
            "EMPTY" => Some("".into()),
            _ => None,
        }
    }

    fn expand(text: &str) -> Result<Option<String>, String> {
        let flags = ["run=r2", "dollar=${run}", "HOME", "empty=", "up=..", "here=.", "dots=..."];
        let flags = flags.map(OsString::from);
        let vars = Vars::new(&flags, &env).unwrap();
        let message = |problem: Problem| problem.to_string();
        let strict = vars.expand(text, false).map_err(message);
        if strict.is_ok() {
            assert_eq!(strict, vars.expand(text, true).map_err(message));
        }
        strict
    }

    #[test]
    fn references_are_replaced_once() {
        for (text, expanded) in [
            ("/a/${run}/b", "/a/r2/b"),
            ("${run}${run}", "r2r2"),
            ("${HOME}/${run}", "/home/me/r2"),
            ("${env:HOME}.${dots}", "/home/me...."),
            ("$$", "$"),
            ("$${run}", "${run}"),
            ("$$${run}$$", "$r2$"),
            ("${dollar}", "${run}"),
        ] {
            assert_eq!(expand(text), Ok(Some(expanded.to_owned())), "{text}");
        }
        assert_eq!(expand("/plain"), Ok(None));
    }

    #[test]
    fn what_is_no_reference_is_refused() {
        for (text, message) in [
            ("${rum}", "`${rum}` is not defined"),
            ("${env:NOPE}", "the environment has no `NOPE`"),
            ("$HOME", "`$HOME` is no variable"),
            ("${run", "`${run` is no variable"),
            ("${}", "`${}` is no variable"),
            ("${a b}", "`${a b}` is no variable"),
            ("x$", "`$` is no variable"),
            ("/a/${empty}", "`${empty}` is empty"),
            ("${env:EMPTY}", "`${env:EMPTY}` is empty"),
            ("/a/${HOME}", "`${HOME}` is not one name"),
            ("${run}${env:HOME}", "`${env:HOME}` is not one name"),
            ("${HOME}/${up}", "`${up}` is not one name"),
            ("/a/${here}/b", "`${here}` is not one name"),
        ] {
            assert_eq!(expand(text), Err(message.to_owned()), "{text}");
        }
    }

    #[test]
    fn free_text_takes_any_value() {
        let flags = ["path=/a/b".into(), "empty=".into()];
        let vars = Vars::new(&flags, &env).unwrap();
        let expanded = vars.expand("x${empty}:${path}", true).unwrap();
        assert_eq!(expanded.as_deref(), Some("x:/a/b"));
    }

    #[test]
    fn escaped_text_comes_back() {
        for text in ["$", "a$${b}", "${run}"] {
            assert_eq!(expand(&escape(text)), Ok(Some(text.to_owned())));
        }
    }
}
