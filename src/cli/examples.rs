//! What stands below the options of each command's help, and in its man page:
//! paragraphs under a heading that ends in a colon.

macro_rules! exit_status_of_run {
    () => {
        "
Exit status:
  the provider's own, or
  124  the timeout ended the run
  125  the command line or policy is wrong, the cell failed before the provider ran,
       --verify found a leak, or an error came after the provider ended
  126  the command cannot be executed
  127  the command was not found
  128+N  signal N ended the provider"
    };
}

macro_rules! exit_status_of_printing {
    () => {
        "
Exit status:
  0    all was printed
  125  the policy cannot be loaded, or the host lacks what it asks for"
    };
}

pub(super) const ALL: &str = concat!(
    "\
Examples:
  cellblock demo                              what a cell denies, with a control outside it
  cellblock run --workspace . -- bash         a shell that sees this directory and the system
  cellblock plan --workspace . -- bash        the steps of that run
  cellblock verify                            test a cell on this host
  cellblock policy check --policy cell.toml   check a policy file
",
    exit_status_of_run!()
);

pub(super) const RUN: &str = concat!(
    "\
Examples:
  cellblock run --workspace . -- bash
  cellblock run --workspace . --net host --profile claude --var state=$HOME/.claude-cell \\
      --ro-bind ~/.local/bin --ro-bind ~/.local/share/claude --env PATH -- claude
  cellblock run --policy cell.toml --var run=r2 --timeout 30m -- codex exec -
  cellblock run --ro-bind /opt/toolchain --bind out:/data -- make
  cellblock run --args 3 3< <(printf '%s\\0' --env TOKEN=x) -- sh

Paths:
  SRC:DEST holds one colon. Write a path with another colon in a policy file:
  ro_bind = [{ src = \"/srv/a:b\", dest = \"/data\" }]
",
    exit_status_of_run!()
);

pub(super) const PLAN: &str = concat!(
    "\
Examples:
  cellblock plan --workspace . -- bash
  cellblock plan --policy cell.toml --var run=r2 --json -- codex exec -
",
    "
Exit status:
  0    the run would reach the program
  125  the policy cannot be loaded, or the host lacks what it asks for
  126  the program cannot be executed
  127  the program was not found"
);

pub(super) const VERIFY: &str = "\
Examples:
  cellblock verify                            a cell of the demo's fixture
  cellblock verify --policy cell.toml --var run=r2 --canary /srv/instance/secrets
  cellblock verify --policy cell.toml --canary 5432 --strict --json
  cellblock run --verify --policy cell.toml -- sh agent.sh

Canaries:
  A number is a port. Write a file of that name as ./5432.
  With --strict, a port on which nobody listens counts as wrong.
  With --net host no cell is sound, since it reaches what listens on loopback.

Exit status:
  0    sound
  1    a leak, or a grant that does not work
  125  the cell could not be built";

pub(super) const DEMO: &str = "\
Examples:
  cellblock demo
  cellblock demo --without landlock           what the other layers hold

Exit status:
  0    the cell is sound
  1    a line is wrong, or a layer is off
  125  the fixture could not be made, or the cell could not be built";

pub(super) const POLICY: &str = "\
Examples:
  cellblock policy show --profile claude --var state=$HOME/.claude-cell > cell.toml
  cellblock policy check --policy cell.toml";

pub(super) const SHOW: &str = concat!(
    "\
Examples:
  cellblock policy show --policy cell.toml --var run=r2
  cellblock policy show --workspace . --net host > cell.toml   keep these flags
",
    exit_status_of_printing!()
);

pub(super) const CHECK: &str = "\
Examples:
  cellblock policy check --policy cell.toml --var run=r2
  cellblock policy check --strict --json --workspace .

Exit status:
  0    the policy can be loaded
  1    with --strict, there is a warning
  125  the policy cannot be loaded";

pub(super) const SCHEMA: &str = "\
Examples:
  cellblock policy schema > cellblock-policy.json

Exit status:
  0    it was printed
  125  the command line is wrong, or it could not be written";

pub(super) const PROFILE: &str = "\
Examples:
  cellblock policy profile claude > cell.toml

Exit status:
  0    it was printed
  125  the command line is wrong, or it could not be written";

pub(super) const MAN: &str = "\
Examples:
  cellblock man | man -l -
  cellblock man run | man -l -
  cellblock man policy.5 > ~/.local/share/man/man5/cellblock-policy.5

Exit status:
  0    the page was printed
  125  there is no such page";

pub(super) const COMPLETIONS: &str = "\
Examples:
  source <(cellblock completions bash)
  cellblock completions zsh > ~/.zfunc/_cellblock
  cellblock completions fish > ~/.config/fish/completions/cellblock.fish

Exit status:
  0    it was printed
  125  the command line is wrong, or it could not be written";
