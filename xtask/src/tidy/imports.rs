//! Which module of `src/` may use which, as `docs/architecture.md` says.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

use super::code::without_text;
use super::{Finding, Source};

const DOCUMENT: &str = "docs/architecture.md";

/// The first line of the table.
const TABLE: &str = "| from | may use |";

/// What no table may widen: the child and what it is built of stay small enough
/// to be read whole, and know nothing of policies.
const FIXED: [(&str, &[&str]); 3] = [("child", &["plan", "sys", "wire"]), ("wire", &["sys"]), ("sys", &[])];

type Table = BTreeMap<String, BTreeSet<String>>;

pub fn check(sources: &[Source], document: &str) -> Result<Vec<Finding>> {
    let table = table(document).with_context(|| format!("{DOCUMENT} has no table `{TABLE}`"))?;
    let mut findings = widened(&table);
    let modules: BTreeSet<&str> = sources.iter().filter_map(|source| Some(place(&source.path)?.0)).collect();
    for row in table.keys().filter(|row| !modules.contains(row.as_str())) {
        findings.push(in_document(format!("the table has a row for `{row}`, which src/ has not")));
    }
    for module in modules.iter().filter(|module| !table.contains_key(**module)) {
        findings.push(in_document(format!("the table has no row for `{module}`")));
    }
    for source in sources {
        let Some((module, depth)) = place(&source.path) else { continue };
        let Some(allowed) = table.get(module) else { continue };
        for (line, used) in uses(&product(&source.text), depth) {
            if used != module && !allowed.contains(&used) {
                findings.push(source.finding(line, format!("`{module}` may not use `{used}`: {DOCUMENT}")));
            }
        }
    }
    Ok(findings)
}

fn in_document(what: String) -> Finding {
    Finding { path: DOCUMENT.to_owned(), line: 1, what }
}

fn widened(table: &Table) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (module, fixed) in FIXED {
        let more = table.get(module).into_iter().flatten().filter(|used| !fixed.contains(&used.as_str()));
        findings.extend(more.map(|used| in_document(format!("the table lets `{module}` use `{used}`"))));
    }
    findings
}

fn table(document: &str) -> Option<Table> {
    let (_, rows) = document.split_once(TABLE)?;
    let rows = rows.trim_start().lines().skip(1).take_while(|line| line.starts_with('|'));
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    rows.map(|row| {
        let mut cells = row.trim_matches('|').split('|');
        let from = names(cells.next()?).pop()?;
        Some((from, names(cells.next()?).into_iter().collect()))
    })
    .collect()
}

/// The module of `src/` that a file belongs to, and how many `super::` lead from
/// it to the root. None for the root itself.
fn place(path: &str) -> Option<(&str, usize)> {
    let path = path.strip_prefix("src/")?.strip_suffix(".rs")?;
    if ["lib", "main"].contains(&path) {
        return None;
    }
    let path = path.strip_suffix("/mod").unwrap_or(path);
    Some((path.split('/').next()?, path.split('/').count()))
}

/// The code in front of the unit tests.
fn product(text: &str) -> String {
    let code = without_text(text);
    let end = code.find("#[cfg(test)]").unwrap_or(code.len());
    code[..end].to_owned()
}

/// The modules that `crate::…` and enough of `super::` name, with their lines.
fn uses(code: &str, depth: usize) -> Vec<(usize, String)> {
    let supers = "super::".repeat(depth);
    let mut uses = Vec::new();
    for root in ["crate::", &supers] {
        for (at, _) in code.match_indices(root) {
            let before = &code[..at];
            if before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            let line = before.matches('\n').count() + 1;
            let rest = &code[at + root.len()..];
            uses.extend(first_names(rest).into_iter().map(|name| (line, name)));
        }
    }
    uses
}

/// `a` of `a::b`, and `a` and `c` of `{a::b, c}`.
fn first_names(path: &str) -> Vec<String> {
    let name = |path: &str| {
        let path = path.trim_start();
        path[..path.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(path.len())].to_owned()
    };
    let Some(group) = path.strip_prefix('{') else { return vec![name(path)] };
    let (mut depth, mut names, mut from) = (0, Vec::new(), 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                names.push(name(&group[from..at]));
                from = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    const TABLE: &str = "\
| from | may use |
|---|---|
| `child` | `plan`, `sys` |
| `plan` | |
| `sys` | |

behind it";

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let mut all =
            vec![source("src/child.rs", ""), source("src/plan.rs", ""), source("src/sys/mod.rs", "")];
        all.retain(|one| files.iter().all(|(path, _)| *path != one.path));
        all.extend(files.iter().map(|(path, text)| source(path, text)));
        check(&all, TABLE).unwrap().into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn an_arrow_of_the_table_holds() {
        assert!(findings(&[("src/child.rs", "use crate::plan::Step;\nuse crate::sys;")]).is_empty());
    }

    #[test]
    fn a_broken_arrow_is_found_however_it_is_written() {
        for text in [
            "use crate::plan;",
            "use crate::{sys, plan::Step};",
            "let a = crate::plan::b();",
            "use super::plan;",
        ] {
            assert_eq!(findings(&[("src/sys/mod.rs", text)]).len(), 1, "{text}");
        }
        assert_eq!(findings(&[("src/sys/fd/a.rs", "use super::super::super::plan;")]).len(), 1);
    }

    #[test]
    fn comments_tests_and_neighbours_are_no_imports() {
        let text = "//! [`crate::plan`]\nuse super::plan;\n#[cfg(test)]\nmod tests { use crate::plan; }";
        assert!(findings(&[("src/sys/fd.rs", text)]).is_empty());
    }

    #[test]
    fn rows_and_modules_are_the_same() {
        assert_eq!(findings(&[("src/new.rs", "")]), ["the table has no row for `new`"]);
        let only = [source("src/sys/mod.rs", "")];
        assert_eq!(check(&only, TABLE).unwrap().len(), 2);
    }

    #[test]
    fn the_table_widens_nothing_fixed() {
        let table = table("| from | may use |\n|---|---|\n| `sys` | `plan` |\n").unwrap();
        assert_eq!(widened(&table).len(), 1);
        assert!(check(&[], "no table").is_err());
    }
}
