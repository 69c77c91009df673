//! The JSON Schema of a policy file.

use schemars::Schema;
use schemars::transform::transform_subschemas;
use serde_json::Value;

use super::file::File;

/// The schema, draft 2020-12, of exactly what [`super::load`] reads.
pub fn schema() -> String {
    let mut schema = schemars::schema_for!(File);
    without_null(&mut schema);
    format!("{:#}\n", schema.as_value())
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
