//! Single precision as the SPU has it, for `--floats=exact`: in the compiler's output, and in
//! constants (`constants`).
//!
//! Why in the output: there each operation of floats is an instruction, whether the source wrote an
//! operator, an intrinsic or a cast. A call of the library's takes the instruction's place
//! (`spu/floats.c`), which computes by integers and keeps every register and flag.
//!
//! Must stay true: an instruction of floats that the library has not is refused by its name. The
//! numbers of the operations are those of `spu/floats.c`. Code has no red zone, since the calls
//! keep their operands below the stack pointer.

mod constants;

pub(crate) use constants::{CONVERSIONS, constants};

use crate::Error;
use std::fmt::Write as _;

/// Options of a compilation whose output [`exact`] reads; behind the user's own, so that they win.
pub(crate) const COMPILE: &[&str] = &[
    // Else sums of constants are the compiler's, which rounds them.
    "-frounding-math",
    "-mno-red-zone",
    // Three operands, other names, and loads that need not be aligned.
    "-mno-avx",
    // Sines and remainders by the processor's wider floats, as -ffast-math asks for.
    "-mno-fancy-math-387",
    "-fno-builtin-fmodf",
    // Its output is no assembly.
    "-fno-lto",
    DEFINE,
];

/// By which the kit's headers choose; gcc gives it to its first preprocessing alone.
pub(crate) const DEFINE: &str = "-D__SIDECORE_FLOATS=1";

/// Assembly with a call of the library's for each instruction of floats.
///
/// # Errors
/// An instruction of floats that the library has not, with the function that it is in.
pub(crate) fn exact(assembly: &[u8]) -> Result<Vec<u8>, Error> {
    let mut exact = Vec::with_capacity(assembly.len() + assembly.len() / 4);
    let mut function = "";
    for line in assembly.split_inclusive(|byte| *byte == b'\n') {
        // Instructions and labels are ASCII; comments and strings may be anything.
        let text = std::str::from_utf8(line).unwrap_or_default();
        if let Some(label) = text.trim_end().strip_suffix(':')
            && !label.starts_with('.')
        {
            function = label;
        }
        match replaced(text) {
            Read::Other => exact.extend_from_slice(line),
            Read::Call(call) => exact.extend_from_slice(call.as_bytes()),
            Read::Unknown(name) => {
                return Err(Error::Refused(format!(
                    "--floats=exact: {name} in {function} has no counterpart of the SPU's here"
                )));
            }
        }
    }
    Ok(exact)
}

/// A line of assembly.
enum Read<'a> {
    /// No instruction of floats.
    Other,
    /// The lines in its place.
    Call(String),
    /// An instruction that the library has not.
    Unknown(&'a str),
}

fn replaced(line: &str) -> Read<'_> {
    // Comments of -fverbose-asm.
    let line = line.split('#').next().unwrap_or_default().trim();
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let Some(operation) = operation(name) else {
        let called = rest.split('@').next().unwrap_or_default();
        let library = matches!(name, "call" | "jmp") && COMPILERS.contains(&called);
        return match (library, is_of_floats(name)) {
            (true, _) => Read::Unknown(called),
            (false, true) => Read::Unknown(name),
            (false, false) => Read::Other,
        };
    };
    match call(&operation, &operands(rest)) {
        Some(text) => Read::Call(text),
        None => Read::Unknown(name),
    }
}

/// True for instructions that compute with floats, in the names of this processor.
fn is_of_floats(name: &str) -> bool {
    // The other processor's names of the same instructions begin with a letter more.
    let plain = name.strip_prefix('v').unwrap_or(name);
    if X87.split(' ').any(|known| known == name) || (plain != name && operation(plain).is_some()) {
        return true;
    }
    let single = plain.ends_with("ss") || plain.ends_with("ps");
    single && name.len() > 3 && !MOVES.split(' ').any(|start| plain.starts_with(start))
}

/// An operation of the library's.
struct Operation {
    number: u32,
    elements: u32,
    /// The library's third byte of the operation.
    more: u32,
    shape: Shape,
}

/// Operands of an instruction, in the assembler's order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// A source with its bytes, and the vector that is also the first operand.
    Vector(usize),
    /// The same behind a number that chooses the rounding.
    Rounded(usize),
    /// Addend, factor, and the vector that is the other factor.
    Fused,
    /// A number with its bytes, and the vector.
    FromNumber(usize),
    /// A float, and the number's register.
    ToNumber,
    /// Two floats, whose order goes to the flags.
    Order,
}

/// The library's numbers of operations (`spu/floats.c`).
mod number {
    pub(super) const ADD: u32 = 1;
    pub(super) const SUBTRACT: u32 = 2;
    pub(super) const MULTIPLY: u32 = 3;
    pub(super) const DIVIDE: u32 = 4;
    pub(super) const LEAST: u32 = 5;
    pub(super) const LARGEST: u32 = 6;
    pub(super) const ROOT: u32 = 7;
    pub(super) const RECIPROCAL: u32 = 8;
    pub(super) const ROOT_RECIPROCAL: u32 = 9;
    pub(super) const FUSED: u32 = 10;
    pub(super) const COMPARE: u32 = 11;
    pub(super) const OF_WORD: u32 = 12;
    pub(super) const OF_LONG: u32 = 13;
    pub(super) const TO_WORD: u32 = 14;
    pub(super) const TO_LONG: u32 = 15;
    pub(super) const ORDER: u32 = 16;
    pub(super) const EXTEND: u32 = 17;
    pub(super) const NARROW: u32 = 18;
    pub(super) const WHOLE: u32 = 19;
}

/// Roundings by the processor's numbers.
const NEAREST: u32 = 0;
const CUT: u32 = 3;

/// The operation of an instruction's name.
fn operation(name: &str) -> Option<Operation> {
    let of = |number, elements, more, shape| {
        Some(Operation {
            number,
            elements,
            more,
            shape,
        })
    };
    match name {
        "comiss" | "ucomiss" => return of(number::ORDER, 1, 0, Shape::Order),
        "cvtsi2ss" | "cvtsi2ssl" => return of(number::OF_WORD, 1, 0, Shape::FromNumber(4)),
        "cvtsi2ssq" => return of(number::OF_LONG, 1, 0, Shape::FromNumber(8)),
        "cvttss2si" | "cvttss2sil" => return of(number::TO_WORD, 1, CUT, Shape::ToNumber),
        "cvttss2siq" => return of(number::TO_LONG, 1, CUT, Shape::ToNumber),
        "cvtss2si" | "cvtss2sil" => return of(number::TO_WORD, 1, NEAREST, Shape::ToNumber),
        "cvtss2siq" => return of(number::TO_LONG, 1, NEAREST, Shape::ToNumber),
        "cvtdq2ps" => return of(number::OF_WORD, 4, 0, Shape::Vector(16)),
        "cvttps2dq" => return of(number::TO_WORD, 4, CUT, Shape::Vector(16)),
        "cvtps2dq" => return of(number::TO_WORD, 4, NEAREST, Shape::Vector(16)),
        "cvtss2sd" => return of(number::EXTEND, 1, 0, Shape::Vector(4)),
        "cvtps2pd" => return of(number::EXTEND, 2, 0, Shape::Vector(8)),
        "cvtsd2ss" => return of(number::NARROW, 1, 0, Shape::Vector(8)),
        "cvtpd2ps" => return of(number::NARROW, 2, 0, Shape::Vector(16)),
        // The kit's macros write these (`__spu_fused`), and nothing else does.
        "vfmadd213ps" => return of(number::FUSED, 4, 0, Shape::Fused),
        "vfnmadd213ps" => return of(number::FUSED, 4, 1, Shape::Fused),
        "vfmsub213ps" => return of(number::FUSED, 4, 2, Shape::Fused),
        _ => {}
    }
    let (base, elements, bytes) = match (name.strip_suffix("ss"), name.strip_suffix("ps")) {
        (Some(base), _) => (base, 1, 4),
        (_, Some(base)) => (base, 4, 16),
        _ => return None,
    };
    if let Some(order) = base.strip_prefix("cmp") {
        let orders = ORDERS.iter().find(|(name, _)| *name == order)?.1;
        return of(number::COMPARE, elements, orders, Shape::Vector(bytes));
    }
    if base == "round" {
        return of(number::WHOLE, elements, 0, Shape::Rounded(bytes));
    }
    let number = ARITHMETIC.iter().find(|(name, _)| *name == base)?.1;
    of(number, elements, 0, Shape::Vector(bytes))
}

const ARITHMETIC: &[(&str, u32)] = &[
    ("add", number::ADD),
    ("sub", number::SUBTRACT),
    ("mul", number::MULTIPLY),
    ("div", number::DIVIDE),
    ("min", number::LEAST),
    ("max", number::LARGEST),
    ("sqrt", number::ROOT),
    ("rcp", number::RECIPROCAL),
    ("rsqrt", number::ROOT_RECIPROCAL),
];
/// Comparisons, and those of less (1), equal (2) and greater (4) for which they hold: any two
/// floats of the SPU's have an order.
const ORDERS: &[(&str, u32)] = &[
    ("eq", 2),
    ("lt", 1),
    ("le", 3),
    ("unord", 0),
    ("neq", 5),
    ("nlt", 6),
    ("nle", 4),
    ("ord", 7),
];
/// Beginnings of instructions that move floats, or work on their bits.
const MOVES: &str = "mov and or xor unpck shuf blend insert extract perm broadcast maskmov";
/// Instructions by which wider floats of this processor's meet single ones.
const X87: &str = "flds fsts fstps fadds fsubs fsubrs fmuls fdivs fdivrs fcoms fcomps";

/// The compiler's own functions of floats, whose code is this machine's.
const COMPILERS: &[&str] = &["__mulsc3", "__divsc3", "__powisf2"];

/// Operands between commas; those within parentheses are an operand's own.
fn operands(text: &str) -> Vec<&str> {
    let mut all = Vec::new();
    let (mut start, mut depth) = (0, 0_u32);
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                all.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    all.push(text[start..].trim());
    all
}

/// The lines of a call; nothing where the operands are not those of the instruction.
fn call(operation: &Operation, operands: &[&str]) -> Option<String> {
    let (mut number, mut more) = (operation.number, operation.more);
    let mut text = format!("\tleaq\t-{BLOCK}(%rsp), %rsp\n");
    let mut end = String::new();
    match (operation.shape, operands) {
        (Shape::Vector(bytes), [source, vector]) => {
            keep(&mut text, vector, 16, 0)?;
            keep(&mut text, source, bytes, 1)?;
            end = result(vector);
        }
        (Shape::Rounded(bytes), [rounding, source, vector]) => {
            let chosen = rounding.strip_prefix('$')?.parse::<u32>().ok()?;
            // With this bit the rounding is the processor's own, which is to the nearest.
            more = if chosen & 4 == 0 { chosen & 3 } else { NEAREST };
            keep(&mut text, vector, 16, 0)?;
            keep(&mut text, source, bytes, 1)?;
            end = result(vector);
        }
        (Shape::Fused, [addend, factor, vector]) => {
            keep(&mut text, vector, 16, 0)?;
            keep(&mut text, factor, 16, 1)?;
            keep(&mut text, addend, 16, 2)?;
            end = result(vector);
        }
        (Shape::FromNumber(bytes), [source, vector]) => {
            keep(&mut text, vector, 16, 0)?;
            if !source.starts_with('%') {
                keep(&mut text, source, bytes, 1)?;
            } else if bytes == 8 || is_wide(source) {
                number = number::OF_LONG;
                let _ = writeln!(text, "\tmovq\t{source}, 16(%rsp)");
            } else {
                let _ = writeln!(text, "\tmovl\t{source}, 16(%rsp)");
            }
            end = result(vector);
        }
        (Shape::ToNumber, [source, register]) => {
            keep(&mut text, source, 4, 1)?;
            let wide = is_wide(register);
            if wide {
                number = number::TO_LONG;
            }
            let name = if wide { "movq" } else { "movl" };
            let _ = writeln!(end, "\t{name}\t(%rsp), {register}");
        }
        (Shape::Order, [source, vector]) => {
            keep(&mut text, vector, 16, 0)?;
            keep(&mut text, source, 4, 1)?;
            end.push_str(
                "\tmovq\t%rax, 16(%rsp)\n\tmovb\t(%rsp), %ah\n\tsahf\n\tmovq\t16(%rsp), %rax\n",
            );
        }
        _ => return None,
    }
    let code = number | operation.elements << 8 | more << 16;
    let _ = writeln!(text, "\tmovl\t${code}, 64(%rsp)\n\tcall\t__sidecore_floats");
    text.push_str(&end);
    let _ = writeln!(text, "\tleaq\t{BLOCK}(%rsp), %rsp");
    Some(text)
}

/// Puts an operand of a size in bytes into a place of the call's block.
fn keep(text: &mut String, operand: &str, bytes: usize, place: usize) -> Option<()> {
    let at = place * 16;
    if operand.starts_with("%xmm") {
        let _ = writeln!(text, "\tmovups\t{operand}, {at}(%rsp)");
        return Some(());
    }
    // No register of another kind, and no number.
    if operand.starts_with(['%', '$', '*']) || operand.is_empty() {
        return None;
    }
    // Loads of quadwords fault as the instruction would, where the address is not aligned.
    let load = match bytes {
        4 => "movss",
        8 => "movsd",
        _ => "movaps",
    };
    // Addresses by the stack pointer are those of before the block.
    let own = operand.contains("(%rsp") || operand.contains("(%esp");
    let operand = match (own, operand.starts_with('(')) {
        (true, true) => format!("{BLOCK}{operand}"),
        (true, false) => format!("{BLOCK}+{operand}"),
        (false, _) => operand.to_owned(),
    };
    let _ = writeln!(
        text,
        "\tmovups\t%xmm0, 48(%rsp)\n\t{load}\t{operand}, %xmm0\n\tmovups\t%xmm0, {at}(%rsp)\n\
         \tmovups\t48(%rsp), %xmm0"
    );
    Some(())
}

fn result(vector: &str) -> String {
    format!("\tmovups\t(%rsp), {vector}\n")
}

/// True for a register of 8 bytes.
fn is_wide(register: &str) -> bool {
    register.starts_with("%r") && !register.ends_with('d')
}

/// Bytes of a call's block: four vectors, and the operation.
const BLOCK: u32 = 96;

#[cfg(test)]
mod tests {
    use super::*;

    fn exact_text(assembly: &str) -> String {
        let text = exact(assembly.as_bytes()).expect("known instructions");
        String::from_utf8(text).expect("assembly is text")
    }

    #[test]
    fn an_instruction_becomes_a_call_with_its_operands() {
        let wanted = "f:\n\tleaq\t-96(%rsp), %rsp\n\tmovups\t%xmm2, 0(%rsp)\n\
                      \tmovups\t%xmm0, 48(%rsp)\n\tmovss\t96+-4(%rsp,%rax,4), %xmm0\n\
                      \tmovups\t%xmm0, 16(%rsp)\n\tmovups\t48(%rsp), %xmm0\n\
                      \tmovl\t$257, 64(%rsp)\n\tcall\t__sidecore_floats\n\
                      \tmovups\t(%rsp), %xmm2\n\tleaq\t96(%rsp), %rsp\n\tret\n";
        let read = exact_text("f:\n\taddss\t-4(%rsp,%rax,4), %xmm2\n\tret\n");
        assert_eq!(read, wanted);
        // A comparison's result are the flags.
        let flags = exact_text("\tcomiss\t(%edi), %xmm1\t# x\n");
        assert!(flags.contains("\tmovss\t(%edi), %xmm0\n") && flags.contains("\tsahf\n"));
        let number = exact_text("\tcvttss2si\t%xmm3, %r8d\n\tcvtsi2ssq\t%rdi, %xmm0\n");
        assert!(number.contains("\tmovl\t(%rsp), %r8d\n"), "{number}");
        assert!(number.contains("\tmovq\t%rdi, 16(%rsp)\n"), "{number}");
        let code = number::OF_LONG | 1 << 8;
        assert!(number.contains(&format!("\tmovl\t${code}, 64(%rsp)\n")));
    }

    #[test]
    fn other_instructions_stay_and_unknown_ones_are_refused() {
        let other = "\tmovaps\t%xmm0, %xmm1\n\tandps\t.LC0(%rip), %xmm1\n\taddpd\t%xmm1, %xmm0\n\
                     \tshufps\t$0, %xmm0, %xmm0\n\t.string\t\"addss\"\n\tpaddd\t%xmm0, %xmm1\n";
        assert_eq!(exact_text(other), other);
        for unknown in [
            "haddps\t%xmm0, %xmm1",
            "vaddss\t%xmm0, %xmm1, %xmm2",
            "flds\t(%eax)",
        ] {
            let error = exact(format!("g:\n\t{unknown}\n").as_bytes()).expect_err(unknown);
            let name = unknown.split('\t').next().expect("a name");
            assert!(
                error.to_string().contains(&format!("{name} in g ")),
                "{error}"
            );
        }
        let error = exact(b"g:\n\tcall\t__mulsc3@PLT\n").expect_err("a product");
        assert!(error.to_string().contains("__mulsc3 in g "), "{error}");
    }
}
