//! Which of git's settings make it run something, or read more settings.

use super::config::Setting;

/// How many words of a command are looked at.
const MOST_WORDS: usize = 64;

/// `section.name`, with `*` for any: with a subsection or without.
const RUNS: [&str; 57] = [
    // What git runs unasked.
    "core.fsmonitor",
    "core.hookspath",
    "core.sshcommand",
    "core.gitproxy",
    "core.askpass",
    "core.pager",
    "core.editor",
    "core.alternaterefscommand",
    // Where it looks for its files, and for more settings.
    "core.worktree",
    "include.path",
    "includeif.path",
    "extensions.worktreeconfig",
    "init.templatedir",
    // By attribute, tool or format.
    "filter.clean",
    "filter.smudge",
    "filter.process",
    "diff.external",
    "diff.command",
    "diff.textconv",
    "merge.driver",
    "difftool.cmd",
    "difftool.path",
    "mergetool.cmd",
    "mergetool.path",
    "tar.command",
    "interactive.difffilter",
    "sequence.editor",
    "pager.*",
    "hook.*",
    // Names of the run's own.
    "alias.*",
    "man.cmd",
    "man.path",
    "browser.cmd",
    "browser.path",
    "guitool.cmd",
    "trailer.command",
    "trailer.cmd",
    // The way to others.
    "credential.helper",
    "gpg.program",
    "gpg.defaultkeycommand",
    "remote.uploadpack",
    "remote.receivepack",
    "remote.vcs",
    "protocol.allow",
    "uploadpack.packobjectshook",
    "receive.procreceiverefs",
    "submodule.update",
    "gc.recentobjectshook",
    "instaweb.httpd",
    "instaweb.browser",
    "imap.tunnel",
    "sendemail.smtpserver",
    "sendemail.sendmailcmd",
    "sendemail.tocmd",
    "sendemail.cccmd",
    "sendemail.headercmd",
    "lfs.*",
];

/// Whether git, or what belongs to it, runs something because of a setting.
pub fn runs(setting: &Setting) -> bool {
    let is_listed = RUNS.iter().any(|listed| {
        let (section, name) = listed.split_once('.').expect("a constant");
        &*setting.section == section && (name == "*" || setting.name == name)
    });
    let is_harmless = match &*setting.section {
        "alias" | "submodule" => !setting.value.starts_with(b"!"),
        // Whether there is one at all.
        "pager" => is_boolean(&setting.value),
        "core" => setting.name == "fsmonitor" && is_boolean(&setting.value),
        // Where it stores, and what it checks.
        "lfs" => !["path", "clean", "smudge", "standalonetransferagent"].contains(&&*setting.name),
        _ => false,
    };
    is_listed && !is_harmless
}

fn is_boolean(value: &[u8]) -> bool {
    const WORDS: [&str; 9] = ["", "true", "false", "yes", "no", "on", "off", "0", "1"];
    WORDS.iter().any(|word| value.eq_ignore_ascii_case(word.as_bytes()))
}

/// Whether git reads more settings from the file that it names.
pub fn includes(setting: &Setting) -> bool {
    ["include", "includeif"].contains(&&*setting.section) && setting.name == "path"
}

/// Whether git runs, or copies for later, what lies in the directory that it names.
pub fn names_hooks(setting: &Setting) -> bool {
    setting.is("core", "hookspath") || setting.is("init", "templatedir")
}

/// What of a command may be a file, as far as that can be told without a shell.
/// A first word without a slash is looked for in PATH.
pub fn files(command: &[u8]) -> impl Iterator<Item = &[u8]> {
    let command = command.strip_prefix(b"!").unwrap_or(command);
    let words = command.split(|byte| byte.is_ascii_whitespace() || b"'\"`$(){}=;|&<>".contains(byte));
    let words = words.filter(|word| !word.is_empty()).take(MOST_WORDS).enumerate();
    let words = words.filter(|(number, word)| *number > 0 || word.contains(&b'/'));
    // Of "$(git rev-parse --show-toplevel)/tool" and "$PWD/tool" the end counts.
    words.flat_map(|(_, word)| {
        let end = word.iter().position(|byte| *byte == b'/').map(|slash| &word[slash + 1..]);
        [Some(word), end].into_iter().flatten()
    })
}
