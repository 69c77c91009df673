//! `unsafe` and its comments, attributes and their reasons, and what is not done.

use super::{Finding, Source};

pub fn check(source: &Source) -> Vec<Finding> {
    let code = without_text(&source.text);
    let mut findings = unsafe_elsewhere(source, &code);
    findings.extend(unsafe_without_reason(source, &code));
    findings.extend(lints_without_reason(source, &code));
    findings.extend(not_done(source, &code));
    findings
}

/// The product's `unsafe` stands in `src/sys/` alone.
fn unsafe_elsewhere(source: &Source, code: &str) -> Vec<Finding> {
    if !source.path.starts_with("src/") || source.path.starts_with("src/sys/") {
        return vec![];
    }
    numbered(code)
        // `#[unsafe(no_mangle)]` gives a name away and does nothing.
        .filter(|(_, line)| words(&line.replace("#[unsafe(", "")).any(|word| word == "unsafe"))
        .map(|(number, _)| source.finding(number, "`unsafe` outside src/sys: make a function of it there"))
        .collect()
}

/// A block says on which invariant it relies.
fn unsafe_without_reason(source: &Source, code: &str) -> Vec<Finding> {
    let code: Vec<&str> = code.lines().collect();
    let text: Vec<&str> = source.text.lines().collect();
    let has_reason = |block: usize| {
        let mut above = block;
        while above > 0 {
            above -= 1;
            if text[above].trim_start().starts_with("//") {
                if text[above].contains("// SAFETY: ") {
                    return true;
                }
            } else if code[above].trim().is_empty() || code[above].trim_end().ends_with([';', '}']) {
                return false;
            }
        }
        false
    };
    (0..code.len())
        .filter(|&line| code[line].contains("unsafe {") && !has_reason(line))
        .map(|line| source.finding(line + 1, "an `unsafe` block without a `// SAFETY:` comment above it"))
        .collect()
}

/// Whoever turns a lint off says why.
fn lints_without_reason(source: &Source, code: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for start in ["#[allow(", "#![allow(", "#[expect(", "#![expect("] {
        for (at, _) in code.match_indices(start) {
            let attribute = code[at..].split(']').next().unwrap_or_default();
            if !attribute.contains("reason =") {
                let line = code[..at].lines().count().max(1) + usize::from(code[..at].ends_with('\n'));
                findings.push(source.finding(line, "a lint is turned off without `reason = \"…\"`"));
            }
        }
    }
    findings
}

/// What is left for later is not part of the product.
fn not_done(source: &Source, code: &str) -> Vec<Finding> {
    const MACROS: [&str; 3] = ["todo!", "unimplemented!", "dbg!"];
    // In two parts, so that this file does not break its own rule.
    const MARK: &str = concat!("FIX", "ME");
    numbered(code)
        .zip(source.text.lines())
        .filter(|((_, code), text)| MACROS.iter().any(|name| code.contains(name)) || text.contains(MARK))
        .map(|((number, _), text)| source.finding(number, format!("not done: {}", text.trim())))
        .collect()
}

fn numbered(code: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(code.lines())
}

/// The words of a line of code.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The code with its comments, strings and characters blanked out, line by line
/// at the same places.
pub(super) fn without_text(code: &str) -> String {
    let mut rest = code;
    let mut bare = String::with_capacity(code.len());
    while let Some(c) = rest.chars().next() {
        let length = text_length(rest).unwrap_or(0);
        if length == 0 {
            bare.push(c);
            rest = &rest[c.len_utf8()..];
            // A raw string begins at its `r`, not within a word.
            if c.is_alphanumeric() || c == '_' {
                let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                bare.push_str(&rest[..word]);
                rest = &rest[word..];
            }
        } else {
            bare.extend(rest[..length].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[length..];
        }
    }
    bare
}

/// How long the comment, string or character is that the code begins with.
fn text_length(code: &str) -> Option<usize> {
    if code.starts_with("//") {
        return Some(code.find('\n').unwrap_or(code.len()));
    }
    if code.starts_with("/*") {
        return Some(code.find("*/").map_or(code.len(), |end| end + 2));
    }
    let prefix = ["", "b", "c"].iter().find(|prefix| {
        let rest = code.strip_prefix(**prefix).unwrap_or_default();
        rest.starts_with(['"', '\'']) || rest.starts_with("r\"") || rest.starts_with("r#")
    })?;
    let body = &code[prefix.len()..];
    let end = if let Some(raw) = body.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        raw[hashes..].strip_prefix('"')?;
        let close = format!("\"{}", "#".repeat(hashes));
        let from = 1 + hashes + 1;
        from + body[from..].find(&close)? + close.len()
    } else {
        quoted_length(body)?
    };
    Some(prefix.len() + end)
}

/// The length of `"…"` or `'…'`; none where the quote begins a lifetime.
fn quoted_length(code: &str) -> Option<usize> {
    let mut characters = code.char_indices();
    let (_, quote) = characters.next()?;
    while let Some((at, c)) = characters.next() {
        match c {
            '\\' => drop(characters.next()),
            c if c == quote => return Some(at + c.len_utf8()),
            _ if quote == '\'' && at > 1 && !code.starts_with("'\\") => return None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::{Finding, Source, source};
    use super::*;

    fn find(rule: fn(&Source, &str) -> Vec<Finding>, path: &str, text: &str) -> usize {
        rule(&source(path, text), &without_text(text)).len()
    }

    #[test]
    fn text_is_blanked() {
        assert_eq!(without_text("a // b\nc"), "a     \nc");
        assert_eq!(without_text(r#"f("un\"safe", 'x', b"y")"#), "f(          ,    ,     )");
        assert_eq!(without_text("r#\"a\"b\"# c"), "         c");
        assert_eq!(without_text("fn f<'a>(x: &'a u8) {}"), "fn f<'a>(x: &'a u8) {}");
        assert_eq!(without_text(r"'\'' a"), "     a");
        assert_eq!(without_text("bar\"x\""), "bar   ");
    }

    #[test]
    fn unsafe_belongs_in_sys() {
        let block = "let a = unsafe { f() };";
        assert_eq!(find(unsafe_elsewhere, "src/plan/mod.rs", block), 1);
        assert_eq!(find(unsafe_elsewhere, "src/sys/fd.rs", block), 0);
        assert_eq!(find(unsafe_elsewhere, "src/main.rs", "#[unsafe(no_mangle)]"), 0);
        assert_eq!(find(unsafe_elsewhere, "src/plan/mod.rs", "// unsafe\nlet unsafe_ = \"unsafe\";"), 0);
    }

    #[test]
    fn an_unsafe_block_has_a_reason() {
        let rule = unsafe_without_reason;
        assert_eq!(find(rule, "src/sys/a.rs", "// SAFETY: it is ours.\nlet a = unsafe { f() };"), 0);
        assert_eq!(
            find(rule, "src/sys/a.rs", "// SAFETY: it is ours.\nf(\n    a,\n    unsafe { f() },\n);"),
            0
        );
        assert_eq!(find(rule, "src/sys/a.rs", "// SAFETY: it is ours.\nf();\nlet a = unsafe { f() };"), 1);
        assert_eq!(find(rule, "src/sys/a.rs", "// It is ours.\nlet a = unsafe { f() };"), 1);
    }

    #[test]
    fn a_lint_is_turned_off_with_a_reason() {
        let rule = lints_without_reason;
        assert_eq!(find(rule, "src/a.rs", "#[allow(dead_code)]"), 1);
        assert_eq!(find(rule, "src/a.rs", "#[expect(dead_code, reason = \"a test\")]"), 0);
        assert_eq!(rule(&source("src/a.rs", ""), "a\n#![allow(x)]")[0].line, 2);
    }

    #[test]
    fn work_left_over_is_found() {
        assert_eq!(find(not_done, "src/a.rs", "todo!()"), 1);
        assert_eq!(find(not_done, "src/a.rs", concat!("// FIX", "ME: later")), 1);
        assert_eq!(find(not_done, "src/a.rs", "let a = \"todo!()\";"), 0);
    }
}
