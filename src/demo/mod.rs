//! A fixture instance and a scripted agent.

pub mod fixture;
