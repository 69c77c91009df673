//! The product as its users meet it, on the real kernel.

mod bad_input;
#[cfg(target_arch = "x86_64")]
mod inject;
mod plan;
mod policy;
mod report;
mod site;
