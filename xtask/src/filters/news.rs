//! `cargo xtask filters news`: calls of newer kernels that nobody has weighed.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, bail};

use super::decide::Decisions;
use super::table::Arch;

/// Calls of the installed kernel headers that no filter mentions, so that each gets a decision
#[derive(clap::Args)]
pub struct Args {
    /// A header with `#define __NR_…` lines, instead of the installed ones
    #[arg(long)]
    header: Option<PathBuf>,
    /// The architecture
    #[arg(long, default_value_t = Arch::NATIVE)]
    arch: Arch,
}

/// Where distributions keep the numbers of an architecture.
fn installed(arch: Arch) -> &'static [&'static str] {
    match arch {
        Arch::X86_64 => &["/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"],
        Arch::Aarch64 => {
            &["/usr/include/aarch64-linux-gnu/asm/unistd_64.h", "/usr/include/asm-generic/unistd.h"]
        }
    }
}

/// Runs `cargo xtask filters news`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let header = match &args.header {
        Some(header) => header.clone(),
        None => {
            let there = installed(args.arch).iter().map(PathBuf::from).find(|path| path.exists());
            there.with_context(|| {
                format!("no {} headers; install linux-libc-dev, or name one with --header", args.arch)
            })?
        }
    };
    let text = fs::read_to_string(&header).with_context(|| header.display().to_string())?;
    let calls = numbers(&text);
    if calls.is_empty() {
        bail!("{} defines no __NR_…", header.display());
    }
    println!("{}: {} calls", header.display(), calls.len());
    let unknown = calls.iter().filter(|(number, _)| args.arch.calls().name(**number).is_none());
    for (number, call) in unknown {
        println!("{number} {call}: add it to xtask/src/filters/syscalls/{}.txt, and decide", args.arch);
    }
    for name in super::names()? {
        let source = super::load(&name)?;
        let decisions = Decisions::new(&source, args.arch)?;
        for (number, call) in args.arch.calls().iter() {
            if !decisions.calls.contains_key(&number) {
                println!("{number} {call}: {name} does not mention it, so: {}", decisions.unknown.action);
            }
        }
    }
    Ok(())
}

/// The numbers a header defines, but for those of 32-bit machines and those that count.
fn numbers<'t>(text: &'t str) -> BTreeMap<u32, &'t str> {
    const OF_32_BITS: std::ops::RangeInclusive<u32> = 403..=423;
    let call = |line: &'t str| {
        let (name, number) = line.strip_prefix("#define __NR_")?.split_once(' ')?;
        let number = number.trim().parse().ok().filter(|number| !OF_32_BITS.contains(number))?;
        (!matches!(name, "syscalls" | "arch_specific_syscall")).then_some((number, name))
    };
    text.lines().filter_map(call).collect()
}

#[cfg(test)]
mod tests {
    use super::numbers;

    #[test]
    fn headers_of_both_kinds() {
        let text = "#define __NR_read 0\n#define __NR3264_fcntl 25\n#define __NR_mseal 462\n\
                    #define __NR_fcntl __NR3264_fcntl\n#define __NR_clock_gettime64 403\n\
                    #define __NR_syscalls 451\n#define X 7\n";
        let found: Vec<_> = numbers(text).into_iter().collect();
        assert_eq!(found, [(0, "read"), (462, "mseal")]);
    }
}
