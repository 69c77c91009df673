//! What a program leaves of the caller's terminal: modes that are on, and
//! questions that the terminal is still answering.
//!
//! A terminal answers some control sequences as if its user typed the answer
//! (ECMA-48; xterm's ctlseqs). Sequences that are known to ask nothing are
//! listed here; any other one counts as a question.

/// Private modes, and whether a terminal has them on by itself.
const MODES: [(u16, bool); 25] = [
    // Cursor keys, reverse video, origin and margins, line wrap, the cursor, the keypad.
    (1, false),
    (5, false),
    (6, false),
    (69, false),
    (7, true),
    (25, true),
    (66, false),
    // The second screen, by its three names.
    (47, false),
    (1047, false),
    (1049, false),
    // Bracketed paste, and output held back until a frame is whole.
    (2004, false),
    (2026, false),
    // Reports: mouse, focus, colours, size, keys as Windows has them.
    (9, false),
    (1000, false),
    (1001, false),
    (1002, false),
    (1003, false),
    (1004, false),
    (1005, false),
    (1006, false),
    (1015, false),
    (1016, false),
    (2031, false),
    (2048, false),
    (9001, false),
];

/// From here on they make the terminal send what nobody has typed.
const REPORTS: usize = 12;

/// More parameters than these are not looked at.
const PARAMETERS: usize = 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    Escape,
    /// Behind `ESC` and the intermediate byte.
    Charset(u8),
    Control,
    /// A string by the byte that began it, and whether it may ask.
    String(u8),
}

/// A terminal, as far as the bytes tell that were written to it.
#[derive(Clone, Debug, Default)]
pub(super) struct Screen {
    state: State,
    /// Of the control sequence: what stands before and behind the parameters.
    private: u8,
    intermediate: u8,
    parameters: [u16; PARAMETERS],
    /// The one that is being read.
    parameter: usize,
    /// Bytes of a character that are still to come, and whether one of them may
    /// be a control character (U+0080 to U+009F).
    continues: u8,
    is_control: bool,
    /// What differs from a terminal just opened, by its place in [`MODES`].
    modes: u32,
    is_coloured: bool,
    inserts: bool,
    adds_line_feeds: bool,
    has_region: bool,
    has_keypad: bool,
    has_charset: bool,
    has_cursor_style: bool,
    has_other_keys: bool,
    /// Levels of kitty's keyboard protocol, and whether one has flags set.
    keyboards: u16,
    has_keyboard_flags: bool,
    /// The palette, and the colours that `OSC 10` to `OSC 19` set, a bit each.
    colours: u16,
    asked: bool,
    asked_for_status: u32,
}

impl Screen {
    /// Takes what was written to the terminal.
    pub fn see(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.take(byte));
    }

    /// Whether the terminal may still be answering.
    pub fn is_asked(&self) -> bool {
        self.asked
    }

    /// How often it was asked for its status (`CSI 5 n`), which is what it can be
    /// asked in the end too.
    pub fn asked_for_status(&self) -> u32 {
        self.asked_for_status
    }

    /// The questions are answered.
    pub fn is_answered(&mut self) {
        (self.asked, self.asked_for_status) = (false, 0);
    }

    /// What puts the terminal back to how a shell expects it; nothing where
    /// nothing differs.
    pub fn reset(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.state != State::Text {
            // CAN ends a sequence, ST a string.
            bytes.extend(b"\x18\x1b\\");
        }
        bytes.extend(self.switched(false));
        let left = [
            (self.is_coloured, &b"\x1b[m"[..]),
            (self.inserts, b"\x1b[4l"),
            (self.adds_line_feeds, b"\x1b[20l"),
            // It moves the cursor, which is saved around it.
            (self.has_region, b"\x1b7\x1b[r\x1b8"),
            (self.has_keypad, b"\x1b>"),
            (self.has_charset, b"\x0f\x1b(B"),
            (self.has_cursor_style, b"\x1b[0 q"),
            (self.has_other_keys, b"\x1b[>4m"),
            (self.has_keyboard_flags, b"\x1b[=0u"),
        ];
        left.iter().filter(|(is_left, _)| *is_left).for_each(|(_, reset)| bytes.extend(*reset));
        if self.keyboards > 0 {
            bytes.extend(format!("\x1b[<{}u", self.keyboards).into_bytes());
        }
        let resets = (0..=10).filter(|bit| self.colours & (1 << bit) != 0);
        let resets = resets.map(|bit| format!("\x1b]{}\x1b\\", if bit == 0 { 104 } else { 109 + bit }));
        bytes.extend(resets.collect::<String>().into_bytes());
        bytes
    }

    /// What sets the modes again that [`Screen::reset`] has reset.
    pub fn again(&self) -> Vec<u8> {
        self.switched(true)
    }

    fn switched(&self, again: bool) -> Vec<u8> {
        let differing = MODES.iter().enumerate().filter(|(index, _)| self.modes & (1 << index) != 0);
        let one = |(_, (mode, default)): (usize, &(u16, bool))| {
            format!("\x1b[?{mode}{}", if *default == again { 'l' } else { 'h' })
        };
        differing.map(one).collect::<String>().into_bytes()
    }

    fn take(&mut self, byte: u8) {
        if byte >= 0x80 {
            return self.take_high(byte);
        }
        self.continues = 0;
        match (byte, self.state) {
            (0x05, _) => self.asked = true,
            // CAN and SUB end what has begun.
            (0x18 | 0x1a, _) => self.state = State::Text,
            (0x1b, _) => self.state = State::Escape,
            (0x07, State::String(_)) => self.state = State::Text,
            (b'?', State::String(b']')) => self.asked = true,
            (_, State::String(b']')) => self.operate(byte),
            (_, State::String(_)) => {}
            (0x0e, _) => self.has_charset = true,
            (0x0f, _) => self.has_charset = false,
            (..0x20, _) | (_, State::Text) => {}
            (_, State::Escape) => self.escape(byte),
            (_, State::Charset(set)) => {
                if set == b'(' {
                    self.has_charset = byte != b'B';
                }
                self.state = State::Text;
            }
            (_, State::Control) => self.control(byte),
        }
    }

    /// Part of a character, or a control character of eight bits.
    fn take_high(&mut self, byte: u8) {
        let is_part = self.continues > 0 && byte < 0xc0;
        let is_control = byte < 0xa0 && (!is_part || self.is_control);
        self.continues = match byte {
            ..0xc0 => self.continues.saturating_sub(1),
            0xc0..0xe0 => 1,
            0xe0..0xf0 => 2,
            _ => 3,
        };
        self.is_control = byte == 0xc2;
        if is_control {
            self.escape(byte - 0x40);
        }
    }

    fn escape(&mut self, byte: u8) {
        self.state = State::Text;
        match byte {
            b'[' | b']' => {
                (self.private, self.intermediate, self.parameter) = (0, 0, 0);
                self.parameters = [0; PARAMETERS];
                self.state = if byte == b'[' { State::Control } else { State::String(byte) };
            }
            b'X' | b'^' => self.state = State::String(byte),
            // What a device control string and an application's command do is the
            // terminal's to know.
            b'P' | b'_' => {
                self.asked = true;
                self.state = State::String(byte);
            }
            0x20..0x30 => self.state = State::Charset(byte),
            b'Z' => self.asked = true,
            b'=' => self.has_keypad = true,
            b'>' => self.has_keypad = false,
            b'c' => {
                let (asked, asked_for_status) = (self.asked, self.asked_for_status);
                *self = Screen { asked, asked_for_status, ..Screen::default() };
            }
            _ => {}
        }
    }

    fn digit(&mut self, digit: u8) {
        if let Some(parameter) = self.parameters.get_mut(self.parameter) {
            *parameter = parameter.saturating_mul(10).saturating_add(u16::from(digit - b'0'));
        }
    }

    /// Part of an operating system command: whether it sets a colour, or sets it back.
    fn operate(&mut self, byte: u8) {
        match (byte, self.parameter) {
            (b';', _) => self.parameter += 1,
            (b'0'..=b'9', 0) => self.digit(byte),
            _ => {}
        }
        match (self.parameters[0], self.parameter) {
            (4, 2..) if byte != b';' => self.colours |= 1,
            (number @ 10..=19, 1..) if byte != b';' => self.colours |= 1 << (number - 9),
            (104, 0) => self.colours &= !1,
            (number @ 110..=119, 0) => self.colours &= !(1 << (number - 109)),
            _ => {}
        }
    }

    fn control(&mut self, byte: u8) {
        match byte {
            b'0'..=b'9' => self.digit(byte),
            b':' | b';' => self.parameter += 1,
            b'<'..=b'?' => self.private = byte,
            0x20..0x30 => self.intermediate = byte,
            0x40..0x7f => {
                self.state = State::Text;
                self.obey(byte);
            }
            _ => {}
        }
    }

    /// The whole control sequence, by its last byte.
    fn obey(&mut self, last: u8) {
        let first = self.parameters[0];
        match (self.private, self.intermediate, last) {
            (0, 0, b'@'..=b'Z' | b'`' | b'a' | b'b' | b'd'..=b'g' | b'i' | b'q' | b's' | b'u') => {}
            (0, 0, b'm') => self.colour(),
            (0, 0, b'h' | b'l') => match first {
                4 => self.inserts = last == b'h',
                20 => self.adds_line_feeds = last == b'h',
                _ => {}
            },
            (0, 0, b'r') => self.has_region = self.parameters[..2] != [0, 0],
            (0, 0, b't') => self.asked |= (11..=21).contains(&first),
            (b'?', 0, b'h' | b'l') => self.switch(last == b'h'),
            (b'?', 0, b'J' | b'K' | b'c' | b'r' | b's') => {}
            (0, b' ', b'q') => self.has_cursor_style = first != 0,
            (0, b'!', b'p') => {
                (self.is_coloured, self.inserts, self.has_keypad) = (false, false, false);
                self.has_region = false;
            }
            (b'>', 0, b'm') => self.has_other_keys = first == 4 && self.parameters[1] != 0,
            (b'>', 0, b'u') => self.keyboards = self.keyboards.saturating_add(1),
            (b'=', 0, b'u') => self.has_keyboard_flags = first != 0,
            (b'<', 0, b'u') => self.keyboards = self.keyboards.saturating_sub(first.max(1)),
            (0, 0, b'n') => {
                self.asked = true;
                self.asked_for_status += u32::from(first == 5);
            }
            _ => self.asked = true,
        }
    }

    /// The last parameter decides, unless it belongs to a colour by number.
    fn colour(&mut self) {
        let given = &self.parameters[..=self.parameter.min(PARAMETERS - 1)];
        let is_numbered = given.iter().any(|parameter| matches!(parameter, 38 | 48 | 58));
        self.is_coloured = is_numbered || given.last() != Some(&0);
    }

    fn switch(&mut self, on: bool) {
        for &mode in &self.parameters[..=self.parameter.min(PARAMETERS - 1)] {
            let Some(place) = MODES.iter().position(|(known, _)| *known == mode) else { continue };
            if on == MODES[place].1 {
                self.modes &= !(1 << place);
            } else {
                self.modes |= 1 << place;
                self.asked |= place >= REPORTS;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(bytes: &[u8]) -> Screen {
        // One by one, as they may come.
        let mut screen = Screen::default();
        bytes.chunks(1).for_each(|byte| screen.see(byte));
        screen
    }

    #[test]
    fn what_asks_and_what_asks_nothing() {
        let asks: [&[u8]; 14] = [
            b"\x1b[6n",
            b"\x1b[c",
            b"\x1b[>c",
            b"\x1b[?6n",
            b"\x1b[21t",
            b"\x1b[?2026$p",
            b"\x1b]11;?\x07",
            b"\x1bP$qm\x1b\\",
            b"\x1b_Gi=1,a=q;\x1b\\",
            b"\x05",
            b"\x1bZ",
            b"\x9b6n",
            b"\xc2\x9b6n",
            b"\x1b[?1003h\x1b[?1003l",
        ];
        asks.iter().for_each(|bytes| assert!(seen(bytes).is_asked(), "{}", bytes.escape_ascii()));
        let text = "plain text, ś6n ✓\r\n".as_bytes();
        let harmless: [&[u8]; 8] = [
            text,
            b"\x1b[01;31mred\x1b[0m",
            b"\x1b[2J\x1b[H\x1b[3;4H\x1b[K\x1b[1A",
            b"\x1b]0;a title\x07\x1b]8;;file:///x\x1b\\",
            b"\x1b[?25l\x1b[?25h\x1b[?2004h\x1b[?1049h",
            b"\x1b(B\x1b[m\x1b7\x1b8",
            b"\x1b[5;20r\x1b[22;0;0t",
            b"\x1b[5\x18n",
        ];
        harmless.iter().for_each(|bytes| assert!(!seen(bytes).is_asked(), "{}", bytes.escape_ascii()));
        assert_eq!(seen(b"\x1b[5n\x1b[05n\x1b[5\rn\x9b5n\x1b[6n").asked_for_status(), 4);
    }

    #[test]
    fn only_what_differs_is_reset() {
        let table: [(&[u8], &[u8]); 19] = [
            (b"\x1b[31mred\x1b[0m", b""),
            (b"\x1b[31mred", b"\x1b[m"),
            (b"\x1b[38;5;0m", b"\x1b[m"),
            (b"\x1b[m", b""),
            (b"\x1b[?25l", b"\x1b[?25h"),
            (b"\x1b[?25l\x1b[?25h", b""),
            (b"\x1b[?1049h\x1b[?1003;1006h", b"\x1b[?1049l\x1b[?1003l\x1b[?1006l"),
            (b"\x1b[?1h\x1b=", b"\x1b[?1l\x1b>"),
            (b"\x1b[?2004h\x1bc", b""),
            (b"\x1b(0", b"\x0f\x1b(B"),
            (b"\x1b[>1u", b"\x1b[<1u"),
            (b"\x1b[?6h\x1b[5;10r", b"\x1b[?6l\x1b7\x1b[r\x1b8"),
            (b"\x1b[5;10r\x1b[r", b""),
            (b"\x1b[20h\x1b[=5u", b"\x1b[20l\x1b[=0u"),
            (b"\x1b]11;#000000\x07\x1b]4;1;red\x1b\\", b"\x1b]104\x1b\\\x1b]111\x1b\\"),
            (b"\x1b]10;red\x07\x1b]110\x07", b""),
            (b"\x1b]11;?\x07\x1b]4;7;?\x07\x1b]104\x07\x1b]2;10;4;x\x07", b""),
            (b"\x1b[?9001h", b"\x1b[?9001l"),
            (b"\x1b]0;never ends", b"\x18\x1b\\"),
        ];
        for (bytes, reset) in table {
            assert_eq!(seen(bytes).reset(), reset, "{}", bytes.escape_ascii());
            assert_eq!(seen(&[bytes, reset].concat()).reset(), b"", "{}", bytes.escape_ascii());
        }
        assert_eq!(seen(b"\x1b[?1049h\x1b[?25l").again(), b"\x1b[?25l\x1b[?1049h");
    }
}
