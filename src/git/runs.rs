//! Which of git's settings make it run something, or read more settings.

use super::config::Setting;

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
        setting.section == section && (name == "*" || setting.name == name)
    });
    let value = setting.value.as_deref().unwrap_or(b"true");
    let is_harmless = match &*setting.section {
        "alias" | "submodule" => !value.starts_with(b"!"),
        // Whether there is one at all.
        "pager" => is_boolean(value),
        "core" => setting.name == "fsmonitor" && is_boolean(value),
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
