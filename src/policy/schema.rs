//! The JSON Schema of a policy file.

use super::file::File;

/// The schema, draft 2020-12, of exactly what [`super::load`] reads.
pub fn schema() -> String {
    format!("{:#}\n", schemars::schema_for!(File).as_value())
}
