//! The JSON Schema of a policy file.

use schemars::Schema;
use schemars::transform::transform_subschemas;
use serde_json::Value;

use super::file::File;

/// The schema, draft 2020-12, of exactly what [`super::load`] reads.
pub fn schema() -> String {
    format!("{:#}\n", file_schema().as_value())
}

fn file_schema() -> Schema {
    let mut schema = schemars::schema_for!(File);
    without_null(&mut schema);
    schema
}

/// Where in a file `key` can stand, as in "it belongs …".
pub(super) fn places_of(key: &str) -> Vec<String> {
    let schema = file_schema();
    let root = schema.as_value();
    let has_key = |table: &Value| table["properties"].get(key).is_some();
    let sections = root["properties"].as_object().into_iter().flatten().filter_map(|(name, section)| {
        let table = root.pointer(section["$ref"].as_str()?.strip_prefix('#')?)?;
        has_key(table).then(|| format!("in [{name}]"))
    });
    let top = has_key(root).then(|| "above the first [section]".to_owned());
    top.into_iter().chain(sections).collect()
}

/// A key that may be left out is also allowed to be null by schemars; TOML has
/// no null.
fn without_null(schema: &mut Schema) {
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|name| name != "null");
        if let [one] = types.as_slice() {
            let one = one.clone();
            schema.insert("type".to_owned(), one);
        }
    }
    if let Some(Value::Array(choices)) = schema.get_mut("anyOf") {
        choices.retain(|choice| choice["type"] != "null");
        if let [Value::Object(one)] = choices.as_slice() {
            let one = one.clone();
            schema.remove("anyOf");
            one.into_iter().for_each(|(key, value)| {
                schema.insert(key, value);
            });
        }
    }
    transform_subschemas(&mut without_null, schema);
}
