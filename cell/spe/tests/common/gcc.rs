//! The command by which SPU programs of the tests and examples are built, without the drivers.

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
