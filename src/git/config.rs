//! What a file of git's settings says. The crate gets its bytes, and follows nothing.

use std::rc::Rc;

use gix_config::parse::{EventRef, Events};
use gix_config::value::normalize;

/// One setting, `section.subsection.name`, and its value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Setting {
    /// In lower case. Many settings share it, and its author chose its length.
    pub section: Rc<str>,
    /// As it is written.
    pub subsection: Option<Rc<str>>,
    /// In lower case.
    pub name: String,
    /// Empty where there is none.
    pub value: Vec<u8>,
}

impl Setting {
    /// As git prints it.
    pub fn key(&self) -> String {
        match &self.subsection {
            Some(middle) => format!("{}.{middle}.{}", self.section, self.name),
            None => format!("{}.{}", self.section, self.name),
        }
    }

    /// Whether it is this one, with any subsection.
    pub fn is(&self, section: &str, name: &str) -> bool {
        &*self.section == section && self.name == name
    }
}

/// Every setting of a file, in its order; `None` where it is no such file.
pub fn parse(text: &[u8]) -> Option<Vec<Setting>> {
    let says_something = |event: EventRef| {
        !matches!(event, EventRef::Comment { .. } | EventRef::Whitespace(_) | EventRef::Newline(_))
    };
    let events = Events::from_bytes(text, Some(says_something)).ok()?;
    let (mut section, mut subsection) = (Rc::from(""), None);
    let mut settings: Vec<Setting> = Vec::new();
    for event in events.iter() {
        match event {
            EventRef::SectionHeader { name, subsection_name, .. } => {
                section = name.to_string().to_ascii_lowercase().into();
                subsection = subsection_name.map(|name| name.to_string().into());
            }
            EventRef::SectionValueName(name) => settings.push(Setting {
                section: Rc::clone(&section),
                subsection: subsection.clone(),
                name: name.to_string().to_ascii_lowercase(),
                value: Vec::new(),
            }),
            EventRef::Value(part) | EventRef::ValueNotDone(part) | EventRef::ValueDone(part) => {
                settings.last_mut()?.value.extend_from_slice(part);
            }
            _ => {}
        }
    }
    for setting in &mut settings {
        setting.value = normalize(setting.value.as_slice()).to_vec();
    }
    Some(settings)
}
