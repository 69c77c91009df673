//! cellblock-policy(5), from the schema and so from the keys' own words.

use clap_mangen::roff::{Roff, bold, italic, roman};
use serde_json::Value;

use super::{example, words_of};
use crate::policy::schema;

const EXAMPLE: &str = "\
version = 1
extends = [\"claude\"]

[cell]
timeout = \"30m\"

[filesystem]
ro_bind = [\"/opt/toolchain\", { src = \"${env:HOME}/.nvm\", optional = true }]

[run]
hide = [\"answers\"]

[workspace]
dir = \"repo\"

[network]
mode = \"host\"";

pub(super) fn page() -> String {
    let schema: Value = serde_json::from_str(&schema::schema()).expect("the schema is JSON");
    let mut roff = Roff::new();
    roff.control("TH", ["cellblock-policy", "5", "", super::SOURCE, ""]);
    roff.control("SH", ["NAME"]);
    roff.text([roman("cellblock-policy - what a cell holds, as a TOML file")]);
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([bold("cellblock run --policy "), italic("FILE"), roman(" -- "), italic("COMMAND")]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.text(words_of(schema["description"].as_str().unwrap_or_default()));
    roff.control("PP", []);
    roff.text(words_of(
        "A policy is the sum of the files, of what these name in `extends`, and of the flags, which come last. Lists append, \
         tables merge, and the last single value wins. Relative paths count from the file's directory. An unknown \
         key is an error.",
    ));
    let properties = members(&schema, "properties");
    let is_table = |value: &Value| resolve(&schema, value)["properties"].is_object();
    roff.control("SH", ["TOP LEVEL"]);
    properties.clone().filter(|(_, value)| !is_table(value)).for_each(|(key, value)| {
        entry(&mut roff, &schema, key, value);
    });
    for (name, value) in properties.clone().filter(|(_, value)| is_table(value)) {
        roff.control("SH", [&*format!("[{name}]")]);
        roff.text(words_of(description(&schema, value)));
        for (key, value) in members(resolve(&schema, value), "properties") {
            entry(&mut roff, &schema, key, value);
        }
    }
    roff.control("SH", ["EXAMPLES"]);
    example(&mut roff, EXAMPLE.lines());
    roff.control("SH", ["FILES"]);
    roff.text(words_of("`cellblock policy schema` prints the JSON Schema of this format. `cellblock policy profile NAME` prints a built-in profile."));
    roff.control("SH", ["SEE ALSO"]);
    roff.text([bold("cellblock"), roman("(1), "), bold("cellblock-policy-check"), roman("(1)")]);
    roff.to_roff()
}

/// A key: its kind, what it means, and the words that it takes.
fn entry(roff: &mut Roff, schema: &Value, key: &str, value: &Value) {
    roff.control("TP", []);
    roff.text([bold(key), roman(format!(" = {}", kind(schema, value)))]);
    roff.text(words_of(description(schema, value)));
    let inner = of_items(schema, value);
    let choices =
        inner["oneOf"].as_array().into_iter().flatten().filter(|choice| choice["const"].is_string());
    let choices =
        choices.map(|choice| (&choice["const"], choice["description"].as_str().unwrap_or_default()));
    let tables = inner["anyOf"].as_array().into_iter().flatten().map(|choice| resolve(schema, choice));
    let keys: Vec<_> = tables.flat_map(|table| members(table, "properties")).collect();
    roff.control("RS", []);
    for (word, words) in choices {
        roff.control("TP", []);
        roff.text([bold(word.to_string())]);
        roff.text(words_of(words));
    }
    for (key, value) in keys {
        entry(roff, schema, key, value);
    }
    roff.control("RE", []);
}

/// The schema of a value, or of the entries of a list.
fn of_items<'a>(schema: &'a Value, value: &'a Value) -> &'a Value {
    let value = resolve(schema, value);
    if value["items"].is_object() { resolve(schema, &value["items"]) } else { value }
}

/// What the `=` takes.
fn kind(schema: &Value, value: &Value) -> &'static str {
    let value = resolve(schema, value);
    let is_list = value["items"].is_object();
    let inner = of_items(schema, value);
    let is_path_or_table = inner["anyOf"].is_array();
    match (is_list, inner["type"].as_str()) {
        (true, _) if is_path_or_table => "a list of paths, or of tables with these keys",
        (true, _) if inner["oneOf"].is_array() => "a list of these words",
        (true, _) => "a list of strings",
        (false, Some("string")) => "a string",
        (false, Some("boolean")) => "true or false",
        (false, Some("integer")) => "a number",
        (false, Some("object")) => "a table",
        _ if inner["oneOf"].is_array() => "one of these words",
        _ => "a value",
    }
}

fn description<'a>(schema: &'a Value, value: &'a Value) -> &'a str {
    let own = value["description"].as_str();
    own.or_else(|| resolve(schema, value)["description"].as_str()).unwrap_or_default()
}

/// What a reference stands for.
fn resolve<'a>(schema: &'a Value, value: &'a Value) -> &'a Value {
    let target = value["$ref"].as_str().and_then(|target| schema.pointer(target.strip_prefix('#')?));
    target.unwrap_or(value)
}

fn members<'a>(
    value: &'a Value,
    name: &str,
) -> impl Iterator<Item = (&'a String, &'a Value)> + Clone + use<'a> {
    value[name].as_object().into_iter().flatten()
}
