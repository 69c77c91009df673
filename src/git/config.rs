//! Git's configuration files, taken apart as git itself does (git-config(1),
//! SYNTAX).

/// One line: `section.subsection.name` and its value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Setting {
    /// Section and name in lower case.
    pub section: String,
    /// As it is written.
    pub subsection: Option<Vec<u8>>,
    /// In lower case.
    pub name: String,
    /// `None` where there is no `=`.
    pub value: Option<Vec<u8>>,
}

impl Setting {
    /// As git prints it.
    pub fn key(&self) -> String {
        match &self.subsection {
            Some(middle) => format!("{}.{}.{}", self.section, String::from_utf8_lossy(middle), self.name),
            None => format!("{}.{}", self.section, self.name),
        }
    }

    /// Whether it is this one, with any subsection.
    pub fn is(&self, section: &str, name: &str) -> bool {
        self.section == section && self.name == name
    }
}

/// A line that git does not take either, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadLine(pub usize);

/// Every setting of a file, in its order.
///
/// # Errors
///
/// Where git says "bad config line".
pub fn parse(text: &[u8]) -> Result<Vec<Setting>, BadLine> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let mut file = Characters { text, at: 0, line: 1 };
    let mut settings = Vec::new();
    let mut head = (String::new(), None);
    while let Some(character) = file.next() {
        match character {
            _ if is_space(character) => {}
            b'#' | b';' => while file.next().is_some_and(|character| character != b'\n') {},
            b'[' => head = file.header().ok_or(BadLine(file.line))?,
            _ if character.is_ascii_alphabetic() => {
                let (name, value) = file.variable(character).ok_or(BadLine(file.line))?;
                settings.push(Setting { section: head.0.clone(), subsection: head.1.clone(), name, value });
            }
            _ => return Err(BadLine(file.line)),
        }
    }
    Ok(settings)
}

fn is_space(character: u8) -> bool {
    matches!(character, b' ' | b'\t' | b'\n' | b'\r')
}

fn is_of_a_key(character: u8) -> bool {
    character.is_ascii_alphanumeric() || character == b'-'
}

struct Characters<'a> {
    text: &'a [u8],
    at: usize,
    line: usize,
}

impl Characters<'_> {
    /// The next one, with `\r\n` taken for `\n`.
    fn next(&mut self) -> Option<u8> {
        let mut character = *self.text.get(self.at)?;
        self.at += 1;
        if character == b'\r' && self.text.get(self.at) == Some(&b'\n') {
            self.at += 1;
            character = b'\n';
        }
        self.line += usize::from(character == b'\n');
        Some(character)
    }

    /// What stands between `[` and `]`.
    fn header(&mut self) -> Option<(String, Option<Vec<u8>>)> {
        let mut section = String::new();
        loop {
            match self.next()? {
                b']' => break,
                character if is_space(character) => {
                    return Some((section, Some(self.quoted_subsection(character)?)));
                }
                character if is_of_a_key(character) || character == b'.' => {
                    section.push(character.to_ascii_lowercase().into());
                }
                _ => return None,
            }
        }
        // The older way to write one: in lower case, behind a dot.
        Some(match section.split_once('.') {
            Some((section, rest)) => (section.to_owned(), Some(rest.as_bytes().to_vec())),
            None => (section, None),
        })
    }

    fn quoted_subsection(&mut self, mut character: u8) -> Option<Vec<u8>> {
        while is_space(character) {
            if character == b'\n' {
                return None;
            }
            character = self.next()?;
        }
        if character != b'"' {
            return None;
        }
        let mut subsection = Vec::new();
        loop {
            let mut character = self.next()?;
            match character {
                b'\n' => return None,
                b'"' => break,
                b'\\' => {
                    character = self.next()?;
                    if character == b'\n' {
                        return None;
                    }
                }
                _ => {}
            }
            subsection.push(character);
        }
        (self.next()? == b']').then_some(subsection)
    }

    /// A name that begins with `first`, and its value.
    fn variable(&mut self, first: u8) -> Option<(String, Option<Vec<u8>>)> {
        let mut name = String::from(char::from(first.to_ascii_lowercase()));
        let mut character = self.next();
        while let Some(more) = character.filter(|character| is_of_a_key(*character)) {
            name.push(more.to_ascii_lowercase().into());
            character = self.next();
        }
        while matches!(character, Some(b' ' | b'\t')) {
            character = self.next();
        }
        match character {
            None | Some(b'\n') => Some((name, None)),
            Some(b'=') => Some((name, Some(self.value()?))),
            Some(_) => None,
        }
    }

    fn value(&mut self) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        let (mut is_quoted, mut is_comment) = (false, false);
        // Where the white space at its end begins.
        let mut end = None;
        loop {
            let character = match self.next() {
                None | Some(b'\n') if is_quoted => return None,
                None | Some(b'\n') => break,
                Some(character) => character,
            };
            if is_comment {
                continue;
            }
            if is_space(character) && !is_quoted {
                end = end.or(Some(value.len()));
                if !value.is_empty() {
                    value.push(character);
                }
                continue;
            }
            if !is_quoted && matches!(character, b';' | b'#') {
                is_comment = true;
                continue;
            }
            end = None;
            match character {
                b'\\' => match self.next() {
                    None | Some(b'\n') => {}
                    Some(b't') => value.push(b'\t'),
                    Some(b'b') => value.push(8),
                    Some(b'n') => value.push(b'\n'),
                    Some(same @ (b'\\' | b'"')) => value.push(same),
                    Some(_) => return None,
                },
                b'"' => is_quoted = !is_quoted,
                character => value.push(character),
            }
        }
        value.truncate(end.unwrap_or(value.len()));
        Some(value)
    }
}
