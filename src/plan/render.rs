//! A plan as text and as JSON.

use std::fmt;

use super::Plan;
use crate::error::printable;

impl Plan {
    /// The plan as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain values serialize")
    }
}

impl fmt::Display for Plan {
    /// Writes one numbered line a step, under the process that takes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let namespaces: Vec<&str> = self.namespaces.iter().map(|namespace| namespace.name()).collect();
        writeln!(f, "launcher")?;
        writeln!(f, "       clone into new namespaces: {}", namespaces.join(" "))?;
        let mut steps = (0..).zip(self.init.iter().chain(&self.provider));
        writeln!(f, "init (PID 1)")?;
        for (index, step) in steps.by_ref().take(self.init.len()) {
            writeln!(f, "  {index:3}  {:<12} {}", step.stage().name(), printable(&step.to_string()))?;
        }
        writeln!(f, "provider (PID 2)")?;
        for (index, step) in steps {
            writeln!(f, "  {index:3}  {:<12} {}", step.stage().name(), printable(&step.to_string()))?;
        }
        let arguments: Vec<String> = self.arguments.iter().map(ToString::to_string).collect();
        writeln!(f, "command: {}", printable(&arguments.join(" ")))?;
        writeln!(f, "environment: {}", printable(&self.environment_names().join(" ")))?;
        for waiver in &self.waived {
            writeln!(f, "without: {waiver}")?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {}", printable(note)))?;
        f.write_str("verified: no (this is what would be done)")
    }
}

impl fmt::Display for super::Waiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layer = self.layer.name();
        match self.reason {
            super::Reason::Missing => write!(f, "{layer}, which this host lacks"),
            super::Reason::Older => {
                write!(f, "the {layer} that the policy requires: this host has an older one, which holds")
            }
            super::Reason::Without => write!(f, "{layer}, which was turned off"),
        }
    }
}
