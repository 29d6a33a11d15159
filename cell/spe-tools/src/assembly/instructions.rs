//! Instructions that are one expression: their operands and their result, in C.

/// An instruction's operands and value.
///
/// Operands, a letter each: `d` a register that is written, `r` one that is read, `z` one that is
/// read or a 0 for none. `i` is a number, `D` and `f` are registers of floats.
#[derive(Debug)]
pub(super) struct Instruction {
    pub(super) operands: &'static str,
    /// The value, with `$1` for the second operand.
    pub(super) value: &'static str,
}

/// The instruction of a name.
pub(super) fn named(name: &str) -> Option<Instruction> {
    let found = TABLE.iter().find(|entry| entry.0 == name)?;
    Some(Instruction {
        operands: found.1,
        value: found.2,
    })
}

/// True for names that this machine's instructions have, too.
pub(super) fn is_common(name: &str) -> bool {
    matches!(
        name,
        "add"
            | "sub"
            | "and"
            | "or"
            | "xor"
            | "neg"
            | "not"
            | "nop"
            | "std"
            | "fabs"
            | "fsqrt"
            | "fadd"
            | "fsub"
            | "fmul"
            | "fdiv"
    )
}

const TABLE: &[(&str, &str, &str)] = &[
    ("mr", "dr", "$1"),
    ("li", "di", "$1"),
    ("lis", "di", "(long long)(int)((unsigned int)($1) << 16)"),
    ("add", "drr", "$1 + $2"),
    ("addi", "dzi", "$1 + $2"),
    ("addis", "dzi", "$1 + $2 * 65536"),
    ("sub", "drr", "$1 - $2"),
    ("subi", "dri", "$1 - $2"),
    ("subf", "drr", "$2 - $1"),
    ("neg", "dr", "-$1"),
    ("mulli", "dri", "$1 * $2"),
    ("mulld", "drr", "$1 * $2"),
    ("mullw", "drr", "(long long)(int)$1 * (int)$2"),
    (
        "mulhw",
        "drr",
        "(unsigned int)((long long)(int)$1 * (int)$2 >> 32)",
    ),
    (
        "mulhwu",
        "drr",
        "(unsigned long long)(unsigned int)$1 * (unsigned int)$2 >> 32",
    ),
    (
        "mulhd",
        "drr",
        "(unsigned long long)((__int128)(long long)$1 * (long long)$2 >> 64)",
    ),
    (
        "mulhdu",
        "drr",
        "(unsigned long long)((unsigned __int128)$1 * $2 >> 64)",
    ),
    // Without a result on the PowerPC, but without a trap as well.
    (
        "divw",
        "drr",
        "((int)$2 == 0 ? 0 : (unsigned int)((long long)(int)$1 / (int)$2))",
    ),
    (
        "divwu",
        "drr",
        "((unsigned int)$2 == 0 ? 0 : (unsigned int)$1 / (unsigned int)$2)",
    ),
    (
        "divd",
        "drr",
        "($2 + 1 <= 1 ? -$1 * ($2 != 0) : (long long)$1 / (long long)$2)",
    ),
    ("divdu", "drr", "($2 == 0 ? 0 : $1 / $2)"),
    ("and", "drr", "$1 & $2"),
    ("andc", "drr", "$1 & ~$2"),
    ("or", "drr", "$1 | $2"),
    ("orc", "drr", "$1 | ~$2"),
    ("xor", "drr", "$1 ^ $2"),
    ("nand", "drr", "~($1 & $2)"),
    ("nor", "drr", "~($1 | $2)"),
    ("eqv", "drr", "~($1 ^ $2)"),
    ("not", "dr", "~$1"),
    ("andi", "dri", "$1 & $2"),
    ("andis", "dri", "$1 & $2 * 65536ULL"),
    ("ori", "dri", "$1 | $2"),
    ("oris", "dri", "$1 | $2 * 65536ULL"),
    ("xori", "dri", "$1 ^ $2"),
    ("xoris", "dri", "$1 ^ $2 * 65536ULL"),
    ("extsb", "dr", "(long long)(signed char)$1"),
    ("extsh", "dr", "(long long)(short)$1"),
    ("extsw", "dr", "(long long)(int)$1"),
    (
        "cntlzw",
        "dr",
        "((unsigned int)$1 ? __builtin_clz((unsigned int)$1) : 32)",
    ),
    ("cntlzd", "dr", "($1 ? __builtin_clzll($1) : 64)"),
    (
        "slw",
        "drr",
        "($2 & 32 ? 0 : (unsigned int)$1 << ($2 & 31))",
    ),
    (
        "srw",
        "drr",
        "($2 & 32 ? 0 : (unsigned int)$1 >> ($2 & 31))",
    ),
    (
        "sraw",
        "drr",
        "__sidecore_shift((int)$1, $2 & 63, 31, &__sidecore_ca)",
    ),
    (
        "srawi",
        "dri",
        "__sidecore_shift((int)$1, $2, 31, &__sidecore_ca)",
    ),
    ("slwi", "dri", "(unsigned int)$1 << $2"),
    ("srwi", "dri", "(unsigned int)$1 >> $2"),
    ("sld", "drr", "($2 & 64 ? 0 : $1 << ($2 & 63))"),
    ("srd", "drr", "($2 & 64 ? 0 : $1 >> ($2 & 63))"),
    (
        "srad",
        "drr",
        "__sidecore_shift((long long)$1, $2 & 127, 63, &__sidecore_ca)",
    ),
    (
        "sradi",
        "dri",
        "__sidecore_shift((long long)$1, $2, 63, &__sidecore_ca)",
    ),
    ("sldi", "dri", "$1 << $2"),
    ("srdi", "dri", "$1 >> $2"),
    (
        "clrlwi",
        "dri",
        "(unsigned int)$1 & __sidecore_mask32($2, 31)",
    ),
    (
        "clrrwi",
        "dri",
        "(unsigned int)$1 & __sidecore_mask32(0, 31 - $2)",
    ),
    ("clrldi", "dri", "$1 & __sidecore_mask64($2, 63)"),
    ("clrrdi", "dri", "$1 & __sidecore_mask64(0, 63 - $2)"),
    ("rotlw", "drr", "__sidecore_turn32($1, $2)"),
    ("rotlwi", "dri", "__sidecore_turn32($1, $2)"),
    ("rotrwi", "dri", "__sidecore_turn32($1, 32 - $2)"),
    ("rotld", "drr", "__sidecore_turn64($1, $2)"),
    ("rotldi", "dri", "__sidecore_turn64($1, $2)"),
    ("rotrdi", "dri", "__sidecore_turn64($1, 64 - $2)"),
    (
        "rlwinm",
        "driii",
        "__sidecore_turn32($1, $2) & __sidecore_mask32($3, $4)",
    ),
    (
        "rlwnm",
        "drrii",
        "__sidecore_turn32($1, $2) & __sidecore_mask32($3, $4)",
    ),
    (
        "rlwimi",
        "driii",
        "__sidecore_put($0, __sidecore_turn32($1, $2), __sidecore_mask32($3, $4))",
    ),
    (
        "extlwi",
        "drii",
        "__sidecore_turn32($1, $3) & __sidecore_mask32(0, $2 - 1)",
    ),
    (
        "extrwi",
        "drii",
        "__sidecore_turn32($1, $3 + $2) & __sidecore_mask32(32 - $2, 31)",
    ),
    (
        "inslwi",
        "drii",
        "__sidecore_put($0, __sidecore_turn32($1, 32 - $3), __sidecore_mask32($3, $3 + $2 - 1))",
    ),
    (
        "insrwi",
        "drii",
        "__sidecore_put($0, __sidecore_turn32($1, 32 - $3 - $2), \
         __sidecore_mask32($3, $3 + $2 - 1))",
    ),
    (
        "rldicl",
        "drii",
        "__sidecore_turn64($1, $2) & __sidecore_mask64($3, 63)",
    ),
    (
        "rldicr",
        "drii",
        "__sidecore_turn64($1, $2) & __sidecore_mask64(0, $3)",
    ),
    (
        "rldic",
        "drii",
        "__sidecore_turn64($1, $2) & __sidecore_mask64($3, 63 - $2)",
    ),
    (
        "rldcl",
        "drri",
        "__sidecore_turn64($1, $2) & __sidecore_mask64($3, 63)",
    ),
    (
        "rldcr",
        "drri",
        "__sidecore_turn64($1, $2) & __sidecore_mask64(0, $3)",
    ),
    (
        "rldimi",
        "drii",
        "__sidecore_put($0, __sidecore_turn64($1, $2), __sidecore_mask64($3, 63 - $2))",
    ),
    ("addc", "drr", "__sidecore_sum($1, $2, 0, &__sidecore_ca)"),
    ("addic", "dri", "__sidecore_sum($1, $2, 0, &__sidecore_ca)"),
    (
        "adde",
        "drr",
        "__sidecore_sum($1, $2, __sidecore_ca, &__sidecore_ca)",
    ),
    (
        "addze",
        "dr",
        "__sidecore_sum($1, 0, __sidecore_ca, &__sidecore_ca)",
    ),
    (
        "addme",
        "dr",
        "__sidecore_sum($1, ~0ULL, __sidecore_ca, &__sidecore_ca)",
    ),
    ("subc", "drr", "__sidecore_sum($1, ~$2, 1, &__sidecore_ca)"),
    ("subfc", "drr", "__sidecore_sum($2, ~$1, 1, &__sidecore_ca)"),
    (
        "subfe",
        "drr",
        "__sidecore_sum($2, ~$1, __sidecore_ca, &__sidecore_ca)",
    ),
    (
        "subfze",
        "dr",
        "__sidecore_sum(0, ~$1, __sidecore_ca, &__sidecore_ca)",
    ),
    (
        "subfic",
        "dri",
        "__sidecore_sum($2, ~$1, 1, &__sidecore_ca)",
    ),
    (
        "subic",
        "dri",
        "__sidecore_sum($1, -(unsigned long long)($2), 0, &__sidecore_ca)",
    ),
    ("fmr", "Df", "$1"),
    ("fabs", "Df", "__builtin_fabs($1)"),
    ("fnabs", "Df", "-__builtin_fabs($1)"),
    ("fneg", "Df", "-$1"),
    ("fadd", "Dff", "$1 + $2"),
    ("fsub", "Dff", "$1 - $2"),
    ("fmul", "Dff", "$1 * $2"),
    ("fdiv", "Dff", "$1 / $2"),
    ("fadds", "Dff", "(float)($1 + $2)"),
    ("fsubs", "Dff", "(float)($1 - $2)"),
    ("fmuls", "Dff", "(float)($1 * $2)"),
    ("fdivs", "Dff", "(float)($1 / $2)"),
    ("fmadd", "Dfff", "__builtin_fma($1, $2, $3)"),
    ("fmadds", "Dfff", "(float)__builtin_fma($1, $2, $3)"),
    ("fmsub", "Dfff", "__builtin_fma($1, $2, -$3)"),
    ("fmsubs", "Dfff", "(float)__builtin_fma($1, $2, -$3)"),
    ("fnmadd", "Dfff", "-__builtin_fma($1, $2, $3)"),
    ("fnmadds", "Dfff", "(float)-__builtin_fma($1, $2, $3)"),
    ("fnmsub", "Dfff", "-__builtin_fma($1, $2, -$3)"),
    ("fnmsubs", "Dfff", "(float)-__builtin_fma($1, $2, -$3)"),
    ("fsel", "Dfff", "$1 >= 0.0 ? $2 : $3"),
    ("frsp", "Df", "(float)$1"),
    ("fsqrt", "Df", "__builtin_sqrt($1)"),
    ("fsqrts", "Df", "(float)__builtin_sqrt($1)"),
    ("fres", "Df", "(float)(1.0 / $1)"),
    ("frsqrte", "Df", "1.0 / __builtin_sqrt($1)"),
];
