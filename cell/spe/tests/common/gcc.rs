//! The programs of the tests and examples, and the command by which those for the store are built,
//! without the drivers.

use std::path::Path;

/// Writes the programs and what they include into `folder`. Each stands under a line `-- NAME --`.
pub(crate) fn unpack(folder: &Path) {
    let programs = concat!("\n", include_str!("../programs.txtar"));
    for program in programs.split("\n-- ").skip(1) {
        let (name, text) = program.split_once(" --\n").expect("a heading");
        std::fs::write(folder.join(name), text).expect("written");
    }
}

/// Options of `gcc` for a program in the store.
pub(crate) const OPTIONS: &[&str] = &[
    "-mx32",
    "-O2",
    "-fPIE",
    "-static-pie",
    "-nostdlib",
    "-nostartfiles",
    "-ffreestanding",
    "-fno-stack-protector",
    "-fcf-protection=none",
    "-fvisibility=hidden",
    "-fno-tree-loop-distribute-patterns",
    "-Wl,-z,norelro",
    "-Wl,-z,noseparate-code",
    "-Wall",
];
