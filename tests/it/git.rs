//! A workspace that git tracks protected paths in: git's ordinary work leaves a
//! true tree, and what the run planted is removed or told.

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::skip;
use crate::user::{User, eventually, text};

/// Names for commits, and git as nobody has set it up.
const GIT: &str = "export GIT_AUTHOR_NAME=n GIT_AUTHOR_EMAIL=e GIT_COMMITTER_NAME=n GIT_COMMITTER_EMAIL=e \
                   GIT_CONFIG_GLOBAL=/dev/null HOME=/tmp; set -e;";

/// Two branches that track different protected paths.
const BRANCHES: &str = "git init -q -b main .; mkdir .vscode; echo 1 > .vscode/settings.json; echo a > a; \
    git add .; git commit -qm base; git checkout -qb other; echo 2 > .vscode/settings.json; \
    echo '{}' > .mcp.json; mkdir .claude; echo '{}' > .claude/settings.json; echo b > a; git add .; \
    git commit -qm other; git checkout -q main";

struct Repository {
    user: User,
}

impl Repository {
    /// `keys` are more of `[workspace]`.
    fn new(keys: &str) -> Option<Repository> {
        let user = User::new().filter(|_| skip::has_programs(&["git"]))?;
        user.directory("work");
        user.file("p.toml", format!("version = 1\n[workspace]\ndir = \"work\"\n{keys}\n"));
        let repository = Repository { user };
        repository.host(BRANCHES);
        Some(repository)
    }

    fn host(&self, script: &str) -> String {
        let mut shell = self.user.command("sh");
        text(
            &shell
                .args(["-c", &format!("{GIT} {script}")])
                .current_dir(self.user.path("work"))
                .output()
                .expect("sh"),
        )
    }

    /// Runs a script in a cell; what it says on standard error, and its last status line.
    fn cell(&self, script: &str) -> (Option<i32>, String, Value) {
        let report = self.user.path("report").display().to_string();
        let options = ["--policy", "p.toml", "--report", &report];
        let output: Output =
            self.user.script(&options, &format!("{GIT} {script}")).output().expect("a launch");
        let report = fs::read_to_string(report).expect("a report");
        let last = serde_json::from_str(report.lines().last().expect("a line")).expect("JSON");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned(), last)
    }

    /// The paths of the report's list `key`.
    fn paths(last: &Value, key: &str) -> Vec<String> {
        let of = |one: &Value| one.get("path").unwrap_or(one).as_str().expect("a path").to_owned();
        let mut paths: Vec<String> = last[key].as_array().expect("a list").iter().map(of).collect();
        paths.sort();
        paths
    }

    fn is_clean(&self, what: &str) {
        assert_eq!(self.host("git status --porcelain --untracked-files=all"), "", "{what}");
    }
}

#[test]
fn gits_ordinary_work_leaves_a_true_tree() {
    let all = [".claude/settings.json", ".mcp.json", ".vscode/settings.json"];
    for (script, told) in [
        ("git checkout -q other", &all[..]),
        ("git merge -q other", &all),
        ("git reset -q --hard other", &all),
        ("git checkout -q -b mine; echo c > c; git add c; git commit -qm c; git rebase -q other", &all),
        ("git checkout -q other; git checkout -q main", &[]),
        ("echo 3 > .vscode/settings.json; git stash -q; git stash drop -q", &[]),
        ("git checkout -q other -- .vscode; git commit -qam v", &[".vscode/settings.json"]),
        ("git rm -qr .vscode; git commit -qm gone", &[".vscode/settings.json"]),
    ] {
        let Some(repository) = Repository::new("") else { return };
        let (code, said, last) = repository.cell(script);
        assert_eq!(code, Some(0), "{script}: {said}");
        repository.is_clean(script);
        assert_eq!(Repository::paths(&last, "told"), told, "{script}: {said}");
        assert_eq!(Repository::paths(&last, "swept"), [""; 0], "{script}: {said}");
        assert!(
            told.iter().all(|path| said.contains(&format!("cellblock: {path}: git tracks it"))),
            "{said}"
        );
    }
}

#[test]
fn a_clone_into_the_workspace_is_whole() {
    let Some(user) = User::new().filter(|_| skip::has_programs(&["git"])) else { return };
    for name in ["work", "from"] {
        user.directory(name);
    }
    let from = user.path("from").display().to_string();
    let host = |place: &str, script: &str| {
        let mut shell = user.command("sh");
        text(
            &shell
                .args(["-c", &format!("{GIT} {script}")])
                .current_dir(user.path(place))
                .output()
                .expect("sh"),
        )
    };
    host("from", BRANCHES);
    let options = ["--workspace", "work", "--ro-bind", &from];
    let output = user.script(&options, &format!("{GIT} git clone -q {from} .")).output().expect("a launch");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert_eq!(host("work", "git status --porcelain"), "", "{said}");
    assert!(said.contains("removed what the run made at protected paths: .git/hooks"), "{said}");
    assert!(
        said.contains("cellblock: .vscode/settings.json: git tracks it, and the run made it; see: "),
        "{said}"
    );
}

#[test]
fn what_git_does_not_track_is_held_or_swept() {
    let Some(repository) = Repository::new("") else { return };
    repository.host("echo mine > .vscode/local.json; echo x > .envrc; echo .vscode/local.json > .git/info/exclude; echo .envrc >> .git/info/exclude");
    let script = "for file in .vscode/local.json .envrc; do (echo evil > $file) 2>/dev/null && exit 9; done; \
                  echo evil > .vscode/tasks.json; mkdir -p .idea; echo evil > .idea/x; mkdir .vscode/sub; echo evil > .vscode/sub/y; \
                  ln -s a .cursor";
    let (code, said, last) = repository.cell(script);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(
        Repository::paths(&last, "swept"),
        [".cursor", ".idea", ".vscode/sub", ".vscode/tasks.json"],
        "{said}"
    );
    assert_eq!(Repository::paths(&last, "told"), [""; 0], "{said}");
    repository.is_clean("planted files");
    assert_eq!(repository.host("cat .vscode/local.json .envrc"), "mine\nx\n");
}

#[test]
fn no_lie_in_the_index_keeps_a_planted_file_unseen() {
    let Some(repository) = Repository::new("") else { return };
    repository.host("echo mine > .vscode/local.json");
    // Tracked by its word alone: told. No longer tracked: what was planted beside goes, what was there stays.
    for (script, swept, told) in [
        ("echo evil > .envrc; git add .envrc", &[][..], &[".envrc"][..]),
        (
            "git rm -q --cached .vscode/settings.json; echo evil > .vscode/tasks.json",
            &[".vscode/tasks.json"],
            &[],
        ),
        ("echo evil > .envrc; echo garbage > .git/index", &[".envrc"], &[".git/index"]),
        ("echo evil > .envrc; rm .git/index; mkfifo .git/index", &[".envrc"], &[".git/index"]),
        ("echo evil > .envrc; rm -rf .git/index; ln -s /dev/zero .git/index", &[".envrc"], &[".git/index"]),
    ] {
        let (code, said, last) = repository.cell(script);
        assert_eq!(code, Some(0), "{script}: {said}");
        assert_eq!(Repository::paths(&last, "swept"), swept, "{script}: {said}");
        let is_told = |path: &&str| Repository::paths(&last, "told").iter().any(|told| told == path);
        assert!(told.iter().all(is_told), "{script}: {said}");
        assert_eq!(repository.host("cat .vscode/local.json"), "mine\n");
        repository.host("rm -rf .git/index .envrc moved; git reset -q --hard");
    }
}

#[test]
fn a_held_file_does_not_move_with_its_directory() {
    let Some(repository) = Repository::new("") else { return };
    repository.host("echo mine > .vscode/local.json");
    let (code, said, last) =
        repository.cell("mv .vscode moved 2>/dev/null && exit 9; echo evil > .vscode/tasks.json");
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(Repository::paths(&last, "swept"), [".vscode/tasks.json"], "{said}");
    assert_eq!(repository.host("cat .vscode/local.json"), "mine\n");
}

#[test]
fn what_makes_git_run_something_is_told() {
    let Some(repository) = Repository::new("") else { return };
    repository.host("git config core.pager less; git config alias.st status");
    for (script, path, what) in [
        ("git config core.fsmonitor 'touch /x'", ".git/config", "core.fsmonitor"),
        ("git config core.hooksPath evil", ".git/config", "core.hookspath"),
        ("git config core.pager 'touch /x'", ".git/config", "core.pager"),
        ("git config filter.x.clean 'touch /x'", ".git/config", "filter.x.clean"),
        ("git config alias.st '!touch /x'", ".git/config", "alias.st"),
        (
            "git config include.path ../inc; printf '[core]\\n sshCommand = x\\n' > inc",
            "inc",
            "core.sshcommand",
        ),
        (
            "printf '[core]\\n\\tfsmon\\\\\\n' >> .git/config",
            ".git/config",
            "settings that git does not take",
        ),
        ("rm .git/config; mkfifo .git/config", ".git/config", "cannot be read"),
        ("git init -q lib", "lib", "made a repository here"),
        (
            "git init -q lib; git -C lib commit -q --allow-empty -m x; git add lib 2>/dev/null; git -C lib config core.fsmonitor 'touch /x'",
            "lib/.git/config",
            "core.fsmonitor",
        ),
        ("git init -q --bare bare; git -C bare config core.fsmonitor x", "bare/config", "core.fsmonitor"),
        ("cp -r .git .c; echo ../.c > .git/commondir", ".c", "made a repository here"),
    ] {
        let before = repository.host("cat .git/config");
        let (_, said, last) = repository.cell(script);
        let told = last["told"].as_array().expect("a list");
        let is_it =
            |one: &Value| one["path"] == path && one["what"].as_str().is_some_and(|said| said.contains(what));
        assert!(told.iter().any(is_it), "{script}: {said}\n{told:?}");
        assert!(said.contains(&format!("cellblock: {path}: ")), "{script}: {said}");
        assert!(!repository.user.path("work/.git/commondir").exists());
        repository
            .user
            .command("rm")
            .args(["-rf", "work/.git/config", "work/lib", "work/bare", "work/inc", "work/.c"])
            .status()
            .expect("rm");
        repository.user.file("work/.git/config", before);
        repository.host("git reset -q --hard");
    }
    // Ordinary settings are nobody's business.
    let (_, said, last) = repository.cell(
        "git config user.name x; git config branch.main.remote origin; git config core.fsmonitor false",
    );
    assert_eq!(last["told"], Value::Array(vec![]), "{said}");
}

#[test]
fn what_is_told_can_be_an_error() {
    let Some(repository) = Repository::new("told = \"error\"") else { return };
    let (code, said, _) = repository.cell("git checkout -q other");
    assert_eq!(code, Some(125), "{said}");
    assert!(said.contains("cellblock: sweep: the run changed what git tracks or runs"), "{said}");
    assert_eq!(repository.cell("git checkout -q other").0, Some(0));
}

#[test]
fn hooks_of_submodules_are_held_and_what_leads_elsewhere_is_swept() {
    let Some(repository) = Repository::new("") else { return };
    repository.host("git init -q sub; git -C sub commit -q --allow-empty -m x; git add sub; git submodule -q absorbgitdirs 2>/dev/null || true; \
                     mkdir -p .git/modules/sub/hooks; cp -rn sub/.git/. .git/modules/sub/ 2>/dev/null || true; test -e .git/modules/sub/HEAD");
    let script = "(echo evil > .git/modules/sub/hooks/post-checkout) 2>/dev/null && exit 9; \
                  echo ../../.. > .git/modules/sub/commondir; echo \"[core] fsmonitor = x\" > .git/config.worktree; true";
    let (code, said, last) = repository.cell(script);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(
        Repository::paths(&last, "swept"),
        [".git/config.worktree", ".git/modules/sub/commondir"],
        "{said}"
    );
}

#[test]
fn links_among_protected_paths_are_all_named_at_once() {
    let Some(user) = User::new() else { return };
    user.directory("work");
    for name in [".envrc", ".mcp.json", ".codex"] {
        std::os::unix::fs::symlink("/nowhere", user.path("work").join(name)).expect("a link");
    }
    let output = user.cell(&["--workspace", "work"], &["true"]).output().expect("a launch");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains(".envrc, .mcp.json, .codex"), "{said}");
}

#[test]
fn a_long_sweep_hears_term_and_says_what_is_left() {
    let Some(user) = User::new().filter(|_| skip::has_programs(&["python3"])) else { return };
    user.directory("work");
    let plant = "import os\nos.makedirs('/work/.vscode'); os.chdir('/work/.vscode'); open('f', 'w')\n\
                 for n in range(60000): os.link('f', str(n))\nprint('made', flush=True)\nimport time; time.sleep(300)";
    let mut run = user.cell(&["--workspace", "work:/work"], &["python3", "-c", plant]);
    let mut launcher = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(launcher.stdout.as_mut().expect("a pipe")),
        &mut line,
    )
    .expect("a line");
    let pid = Pid::from_raw(launcher.id() as i32);
    kill(pid, Signal::SIGTERM).expect("a signal");
    // From when the sweep has begun, each further one cuts it short.
    eventually("it is moved aside", || (!user.path("work/.vscode").exists()).then_some(()));
    while launcher.try_wait().expect("wait").is_none() {
        let _ = kill(pid, Signal::SIGTERM);
        std::thread::sleep(Duration::from_millis(1));
    }
    let output = launcher.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let left: Vec<_> = fs::read_dir(user.path("work"))
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    let [left] = &*left else { panic!("{left:?}: {said}") };
    let left = left.to_str().expect("a name");
    assert!(left.starts_with(".cellblock-swept-"), "{left}");
    assert!(said.contains(&format!("what is left of it lies at {left}")), "{said}");
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(!Path::new(&user.path("work/.vscode")).exists());
}

#[test]
fn policy_check_says_what_becomes_of_each_protected_path() {
    let Some(repository) =
        Repository::new("protect = [\".git/hooks/\", \".vscode/\", \".envrc\", \".idea/\"]")
    else {
        return;
    };
    repository.host("echo mine > .vscode/local.json; mkdir .idea");
    let check = |options: &[&str]| {
        let mut check = repository.user.command(repository.user.path("cellblock").to_str().expect("a path"));
        let options = ["policy", "check", "--policy", "p.toml"].iter().chain(options);
        text(&check.args(options).output().expect("a check"))
    };
    let said = check(&[]);
    for (fate, paths) in [
        ("held: ", ".git/hooks\n  .idea\n  .vscode/local.json\n"),
        ("swept: ", ".envrc\n  .git/commondir\n  .git/config.worktree\n  .vscode\n"),
        ("told: ", ".vscode/settings.json\n"),
    ] {
        let part = said.split("\n\n").find(|part| part.starts_with(fate)).unwrap_or_else(|| panic!("{said}"));
        let (_, listed) = part.split_once("\n  ").expect("paths");
        assert_eq!(listed.trim_end(), paths.trim_end(), "{said}");
    }
    assert!(said.lines().all(|line| line.len() <= 80), "{said}");
    let json: Value = serde_json::from_str(&check(&["--json"])).expect("JSON");
    let told = serde_json::json!({ "fate": "told", "path": ".vscode/settings.json" });
    assert!(json["protected"].as_array().expect("a list").contains(&told), "{json}");
    // A run does what was said.
    let script = "(echo > .idea/x) 2>/dev/null && exit 9; (echo > .vscode/local.json) 2>/dev/null && exit 9; \
                  echo > .envrc; echo > .vscode/new; echo > .vscode/settings.json";
    let (code, said, last) = repository.cell(script);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(Repository::paths(&last, "swept"), [".envrc", ".vscode/new"], "{said}");
    assert_eq!(Repository::paths(&last, "told"), [".vscode/settings.json"], "{said}");
}

/// What git outside would run by settings that were there, or finds by looking around.
#[test]
fn what_git_runs_already_is_told_when_the_run_changes_it() {
    let Some(repository) = Repository::new("") else { return };
    repository.host(
        "mkdir -p dir tools .husky/_ p/q/old; ln -s dir link; for tool in clean.sh merge.py diff.sh; do echo > tools/$tool; done; \
         ln -s clean.sh tools/link; git config include.path ../link/more; git config --add include.path \"$PWD/own\"; \
         git config filter.x.clean './tools/clean.sh %f'; git config merge.x.driver 'python3 tools/merge.py'; \
         git config diff.x.textconv '\"$(git rev-parse --show-toplevel)/tools/diff.sh\"'; git config filter.y.smudge tools/link; \
         git config core.hooksPath .husky/_; echo > .husky/_/pre-commit; echo > .husky/pre-commit; \
         git init -q p/q/old; git init -q p/q/other; sleep 0.05",
    );
    repository.host("cp -a . ../kept");
    let plant = "printf '[core]\\n fsmonitor = x\\n' >";
    let first = [
        (format!("{plant} dir/more"), "link/more"),
        (format!("{plant} own"), "own"),
        ("echo x > tools/clean.sh".to_owned(), "tools/clean.sh"),
        ("true".to_owned(), "tools/link"),
        ("echo x > tools/merge.py".to_owned(), "tools/merge.py"),
        ("echo x > tools/diff.sh".to_owned(), "tools/diff.sh"),
        ("echo x > .husky/pre-commit".to_owned(), ".husky/pre-commit"),
        ("echo x > .husky/_/helper".to_owned(), ".husky/_/helper"),
        ("git init -q p/q/new".to_owned(), "p/q/new"),
        ("git init -q --bare p/q/bare".to_owned(), "p/q/bare"),
        ("git -C p/q/old config core.pager x".to_owned(), "p/q/old/.git/config"),
        (
            "echo x > p/q/other/.git/hooks/post-index-change".to_owned(),
            "p/q/other/.git/hooks/post-index-change",
        ),
    ];
    let second = [
        ("rm tools/link; ln -s merge.py tools/link".to_owned(), "tools/link"),
        ("chmod 111 p/q".to_owned(), "p/q"),
        ("mkfifo own".to_owned(), "own"),
    ];
    let third = [("head -c 2000000 /dev/zero >> .git/config".to_owned(), ".git/config")];
    for changes in [&first[..], &second, &third] {
        let script: Vec<&str> = changes.iter().map(|(script, _)| &**script).collect();
        let (code, said, last) = repository.cell(&script.join("; "));
        assert_eq!(code, Some(0), "{said}");
        let told = Repository::paths(&last, "told");
        for (script, path) in changes {
            assert!(told.iter().any(|told| told == path), "{script}: {said}\n{last}");
        }
        repository.host("chmod 755 p/q; find . -mindepth 1 -delete; cp -a ../kept/. .; sleep 0.05");
    }
    let ordinary = "git -C p/q/old config user.name x; git -C p/q/old commit -q --allow-empty -m x; \
                    git commit -q --allow-empty -m x";
    let (_, said, last) = repository.cell(ordinary);
    assert_eq!(Repository::paths(&last, "told"), [""; 0], "{said}");
}

#[test]
fn a_git_file_of_the_runs_own_is_told() {
    let Some(repository) = Repository::new("") else { return };
    let plant = "git init -q x/y; mv x/y/.git x/e; echo > x/e/hooks/post-index-change; chmod +x x/e/hooks/*; \
                 rm -rf .git; echo gitdir: x/e > .git";
    // There was none; a linked worktree; and a directory that a file names.
    for before in [
        "rm -rf .git",
        "mv .git ../main; git -C ../main worktree add -q ../tree; cp ../tree/.git .git",
        "mkdir o; mv .git o/git; echo gitdir: o/git > .git",
    ] {
        repository.host(before);
        let (_, said, last) = repository.cell(plant);
        let told = Repository::paths(&last, "told");
        for path in [".git", "x/e/hooks/post-index-change"] {
            assert!(told.iter().any(|told| told == path), "{before}: {path}: {said}\n{last}");
        }
        repository.user.command("rm").args(["-rf", "work", "main", "tree"]).status().expect("rm");
        repository.user.directory("work");
        repository.host(BRANCHES);
    }
}

#[test]
fn too_many_settings_are_told_as_that() {
    let Some(repository) = Repository::new("") else { return };
    let many = "mkdir i; for n in $(seq 2100); do echo \"[include] path = ../i/$n\"; echo '[core] pager = x' > i/$n; done >> .git/config";
    let (_, said, last) = repository.cell(many);
    let told = last["told"].as_array().expect("a list");
    assert!(
        told.iter().any(|one| one["what"].as_str().is_some_and(|what| what.contains("were not read")))
            || told.len() == 1001,
        "{said}"
    );
    assert!(
        told.last().is_some_and(|one| one["what"].as_str().is_some_and(|what| what.contains("more changes"))),
        "{last}"
    );
}

#[test]
fn a_sparse_checkout_in_a_cell_stays_one() {
    let Some(repository) = Repository::new("") else { return };
    let (code, said, _) = repository.cell("mkdir d; echo d > d/d; git add d; git commit -qm d; git sparse-checkout set --cone --sparse-index d; test -e d/d; test ! -e .vscode/settings.json");
    assert_eq!(code, Some(0), "{said}");
    assert!(repository.host("git sparse-checkout list").contains('d'), "{said}");
    repository.is_clean(&said);
}

/// `git status` goes into repositories in the workspace, and runs their hooks.
#[test]
fn what_leads_git_on_from_a_repository_that_was_there_is_told() {
    let Some(repository) = Repository::new("") else { return };
    repository.host(
        "git init -q one/sub; git -C one/sub commit -q --allow-empty -m x; git add one 2>/dev/null; \
         git commit -qm sub; mkdir hooks; git config core.hooksPath hooks; cp -r one kept; \
         git worktree add -q ../tree; rm -rf ../tree; mkdir -p deep/er; cp -r .git deep/er/git",
    );
    let hook = |place: &str| format!("printf '#!/bin/sh\\n' > {place}; chmod +x {place}");
    let inner = "git init -q one/sub/t; git -C one/sub/t commit -q --allow-empty -m x; \
                 git -C one/sub add t 2>/dev/null; git -C one/sub/t config core.fsmonitor x";
    for (script, path) in [
        (hook("one/sub/.git/hooks/post-index-change"), "one/sub/.git/hooks/post-index-change"),
        (hook("hooks/pre-commit"), "hooks/pre-commit"),
        ("rm -rf one/sub/.git/hooks; ln -s ../../../hooks one/sub/.git".to_owned(), "one/sub/.git/hooks"),
        ("echo ../../../deep/er/git > one/sub/.git/commondir".to_owned(), "one/sub/.git/commondir"),
        ("rm -rf one/sub/.git; ln -s ../../deep/er/git one/sub/.git".to_owned(), "one/sub/.git"),
        ("rm -rf one/sub/.git; echo gitdir: ../../deep/er/git > one/sub/.git".to_owned(), "one/sub/.git"),
        (
            "echo ../../../deep/er/git > .git/worktrees/tree/commondir".to_owned(),
            ".git/worktrees/tree/commondir",
        ),
        (inner.to_owned(), "one/sub/t/.git/config"),
        (inner.to_owned(), "one/sub/t"),
    ] {
        let (_, said, last) = repository.cell(&script);
        assert!(Repository::paths(&last, "told").iter().any(|told| told == path), "{script}: {said}\n{last}");
        repository.host(
            "rm -rf one hooks; cp -r kept one; mkdir hooks; echo ../.. > .git/worktrees/tree/commondir",
        );
    }
    // Ordinary work in it, and what git makes by itself.
    let ordinary =
        "cd one/sub; echo a > a; git add a; git commit -qm a; cd ../..; git worktree add -q /tmp/t";
    let (_, said, last) = repository.cell(ordinary);
    assert_eq!(Repository::paths(&last, "told"), Vec::<String>::new(), "{said}");
}
