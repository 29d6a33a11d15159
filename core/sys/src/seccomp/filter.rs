//! The filter: which calls are handed over, as a program of classic BPF.
//!
//! Why here: it runs in the kernel at every system call of the program; all else in the parent
//! module runs at the calls that it hands over.
//! Must stay true: a call that no entry names, or of another ABI, is allowed.
//! Source: seccomp(2), `struct seccomp_data`.

/// Condition under which a call is handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Always.
    Always,
    /// If the argument (0 to 5) is not 0: a pointer that was given.
    Given(u8),
    /// If the argument is not 0, or the second one (0 to 5) has this bit among its lower 32.
    GivenOr(u8, u8, u32),
    /// If the lower 32 bits of the argument are one of these.
    OneOf(u8, &'static [u32]),
    /// Unless the argument is this.
    Unless(u8, u64),
}

/// Calls that are handed over, by number.
pub type Filter = [(i64, When)];

/// The filter as a program of classic BPF (seccomp(2)).
pub(super) fn assemble(filter: &Filter) -> Vec<libc::sock_filter> {
    // Codes of classic BPF have 16 bits; libc names them by 32.
    let short = |code: u32| u16::try_from(code).unwrap_or_default();
    let statement = |code: u32, value: u32| libc::sock_filter {
        code: short(code),
        jt: 0,
        jf: 0,
        k: value,
    };
    let jump = |value: u32, if_equal: u8, if_not: u8| libc::sock_filter {
        code: short(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K),
        jt: if_equal,
        jf: if_not,
        k: value,
    };
    let load = |offset: u32| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
    let give = |value: u32| statement(libc::BPF_RET | libc::BPF_K, value);
    let (allow, notify) = (libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_USER_NOTIF);
    // Of another ABI (32-bit programs), numbers mean something else.
    let mut program = vec![
        load(ARCHITECTURE),
        jump(NATIVE, 1, 0),
        give(allow),
        load(NUMBER),
    ];
    for (number, when) in filter {
        // Each call has a block of its own, which ends with a verdict: jumps are relative and
        // reach 255 instructions, so a chain of blocks has no limit.
        // The lower half of an argument comes first: little-endian, as all that we build for.
        let low = |argument: u8| ARGUMENTS + u32::from(argument) * 8;
        let body = match when {
            When::Always => vec![give(notify)],
            // Pointers have 64 bits, instructions compare 32: both halves have to be 0.
            When::Given(argument) => vec![
                load(low(*argument)),
                jump(0, 0, 2),
                load(low(*argument) + 4),
                jump(0, 1, 0),
                give(notify),
                give(allow),
            ],
            When::GivenOr(argument, flags, bit) => vec![
                load(low(*argument)),
                jump(0, 0, 4),
                load(low(*argument) + 4),
                jump(0, 0, 2),
                load(low(*flags)),
                libc::sock_filter {
                    code: short(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K),
                    ..jump(*bit, 0, 1)
                },
                give(notify),
                give(allow),
            ],
            When::Unless(argument, value) => vec![
                load(low(*argument)),
                jump(*value as u32, 0, 3),
                load(low(*argument) + 4),
                jump((*value >> 32) as u32, 0, 1),
                give(allow),
                give(notify),
            ],
            When::OneOf(argument, values) => {
                let mut body = vec![load(low(*argument))];
                for (index, value) in values.iter().enumerate() {
                    body.push(jump(*value, (values.len() - index) as u8, 0));
                }
                body.push(give(allow));
                body.push(give(notify));
                body
            }
        };
        program.push(jump(*number as u32, 0, body.len() as u8));
        program.extend(body);
    }
    program.push(give(allow));
    program
}

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;
/// `AUDIT_ARCH_X86_64` and its like: the target of this build.
const NATIVE: u32 = if cfg!(target_arch = "aarch64") {
    0xc000_00b7
} else {
    0xc000_003e
};
