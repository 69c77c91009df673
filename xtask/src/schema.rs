//! `cargo xtask schema`: the JSON Schemas of what cellblock reads and writes.

use std::fs;
use std::path::Path;

use anyhow::{Result, bail};
use cellblock::launch::status::StatusLine;
use cellblock::report::ReportLine;
use cellblock::verify::Document;

use crate::tidy::root;

/// Writes the schemas of all that is read and printed as JSON to docs/schema.
#[derive(clap::Args)]
pub struct Args {
    /// Only check that they are up to date.
    #[arg(long)]
    check: bool,
}

/// Writes or checks.
pub fn run(args: Args) -> Result<()> {
    let pretty = |schema: schemars::Schema| format!("{:#}\n", schema.as_value());
    let schemas = [
        ("error.json", pretty(schemars::schema_for!(cellblock::error::Document))),
        ("check.json", pretty(schemars::schema_for!(cellblock::lint::Report))),
        ("plan.json", pretty(schemars::schema_for!(cellblock::plan::Plan))),
        ("policy.json", cellblock::policy::schema::schema()),
        ("report.json", pretty(schemars::schema_for!(ReportLine))),
        ("status.json", pretty(schemars::schema_for!(StatusLine))),
        ("verify.json", pretty(schemars::schema_for!(Document))),
    ];
    let directory = root().join("docs/schema");
    if args.check {
        return match stale(&directory, &schemas) {
            names if names.is_empty() => Ok(()),
            names => bail!("docs/schema is stale ({}): run `cargo xtask schema`", names.join(", ")),
        };
    }
    fs::create_dir_all(&directory)?;
    for (name, schema) in &schemas {
        fs::write(directory.join(name), schema)?;
    }
    Ok(())
}

fn stale<'a>(directory: &Path, schemas: &[(&'a str, String)]) -> Vec<&'a str> {
    let is_current = |name: &str, schema: &String| {
        fs::read_to_string(directory.join(name)).is_ok_and(|written| written == *schema)
    };
    schemas.iter().filter(|(name, schema)| !is_current(name, schema)).map(|(name, _)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::stale;

    #[test]
    fn a_schema_that_differs_is_current() {
        let directory = tempfile::tempdir().unwrap();
        let schemas = [("a.json", "{}\n".to_owned()), ("b.json", "{}\n".to_owned())];
        std::fs::write(directory.path().join("a.json"), "{}\n").unwrap();
        assert_eq!(stale(directory.path(), &schemas), ["b.json"]);
    }
}
