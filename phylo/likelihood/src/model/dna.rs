//! The named DNA matrices: which of the six exchangeabilities are one.
//!
//! The digits stand for AC AG AT CG CT GT; equal digits are equal rates. The names are RAxML-NG's.

/// One named matrix.
pub(super) struct Named {
    /// As users write it, without case.
    pub(super) name: &'static str,
    /// The class of each of the six rates.
    pub(super) classes: [u8; 6],
    /// True if all frequencies are a quarter unless said otherwise.
    pub(super) equal: bool,
}

const fn named(name: &'static str, classes: [u8; 6], equal: bool) -> Named {
    Named {
        name,
        classes,
        equal,
    }
}

/// All of them; other programs' names for the same follow in [`ALIASES`].
pub(super) const NAMED: [Named; 22] = [
    named("JC", [0, 0, 0, 0, 0, 0], true),
    named("K80", [0, 1, 0, 0, 1, 0], true),
    named("F81", [0, 0, 0, 0, 0, 0], false),
    named("HKY", [0, 1, 0, 0, 1, 0], false),
    named("TN93ef", [0, 1, 0, 0, 2, 0], true),
    named("TN93", [0, 1, 0, 0, 2, 0], false),
    named("K81", [0, 1, 2, 2, 1, 0], true),
    named("K81uf", [0, 1, 2, 2, 1, 0], false),
    named("TPM2", [0, 1, 0, 2, 1, 2], true),
    named("TPM2uf", [0, 1, 0, 2, 1, 2], false),
    named("TPM3", [0, 1, 2, 0, 1, 2], true),
    named("TPM3uf", [0, 1, 2, 0, 1, 2], false),
    named("TIM1", [0, 1, 2, 2, 3, 0], true),
    named("TIM1uf", [0, 1, 2, 2, 3, 0], false),
    named("TIM2", [0, 1, 0, 2, 3, 2], true),
    named("TIM2uf", [0, 1, 0, 2, 3, 2], false),
    named("TIM3", [0, 1, 2, 0, 3, 2], true),
    named("TIM3uf", [0, 1, 2, 0, 3, 2], false),
    named("TVMef", [0, 1, 2, 3, 1, 4], true),
    named("TVM", [0, 1, 2, 3, 1, 4], false),
    named("SYM", [0, 1, 2, 3, 4, 5], true),
    named("GTR", [0, 1, 2, 3, 4, 5], false),
];

/// Other names in use. IQ-TREE ends names with `e` for equal frequencies and with `u` for unequal
/// ones; names that mean something else here (`TIM2`, `TPM2`) are no aliases.
pub(super) const ALIASES: [(&str, &str); 24] = [
    ("JC69", "JC"),
    ("K2P", "K80"),
    ("HKY85", "HKY"),
    ("TN", "TN93"),
    ("TrN", "TN93"),
    ("TrNef", "TN93ef"),
    ("TPM1", "K81"),
    ("TPM1uf", "K81uf"),
    ("K3P", "K81"),
    ("K3Pe", "K81"),
    ("K3Pu", "K81uf"),
    ("K81u", "K81uf"),
    ("TNe", "TN93ef"),
    ("TrNe", "TN93ef"),
    ("TNef", "TN93ef"),
    ("TPM1u", "K81uf"),
    ("TPM2u", "TPM2uf"),
    ("TPM3u", "TPM3uf"),
    ("TIM", "TIM1uf"),
    ("TIMe", "TIM1"),
    ("TIM1e", "TIM1"),
    ("TIM2e", "TIM2"),
    ("TIM3e", "TIM3"),
    ("TVMe", "TVMef"),
];
