//! The traced side: asks to be traced, puts the filter on, and becomes the program.
//!
//! Why here: a filter of system calls that stops for the tracer must be installed by the process
//! itself, behind the request to be traced and before the program starts. This process has one
//! thread and does nothing else. Source: ptrace(2), seccomp(2) (`SECCOMP_RET_TRACE`).

use crate::faults::{FAULTS, STARTED};
use anyhow::{Context, Result};
use nix::sys::{ptrace, signal};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, SeccompRule};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Becomes `command`, traced by the parent. Returns only where that fails.
pub(crate) fn launch(command: &[OsString]) -> Result<std::convert::Infallible> {
    let (program, arguments) = command.split_first().context("no command to launch")?;
    ptrace::traceme().context("asking to be traced")?;
    // The tracer sets its options while this process is stopped.
    signal::raise(signal::Signal::SIGSTOP).context("stopping for the tracer")?;
    let calls = FAULTS.iter().map(|fault| fault.call).chain([STARTED]);
    let rules: BTreeMap<i64, Vec<SeccompRule>> = calls.map(|call| (call, Vec::new())).collect();
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Trace(0),
        std::env::consts::ARCH
            .try_into()
            .context("this processor")?,
    )?;
    let program_of_filter: BpfProgram = filter.try_into()?;
    seccompiler::apply_filter(&program_of_filter).context("installing the filter")?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("starting {}", program.display()))
}
