//! Tests against the library and the real kernel.

mod policy;
