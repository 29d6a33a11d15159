//! Single precision as the SPU has it, for `--floats=exact`: in the compiler's output and in
//! constants.
//!
//! Why in the output: there each operation of floats is an instruction, whether the source wrote an
//! operator, an intrinsic or a cast. A call of the library's takes the instruction's place
//! (`spu/floats.c`), which computes by integers and keeps every register and flag.
//!
//! Must stay true: an instruction of floats that the library has not is refused by its name. The
//! numbers of the operations are those of `spu/floats.c`. Code has no red zone, since the calls
//! keep their operands below the stack pointer.

use crate::Error;
use crate::implicit::flat;
use crate::text::{Edits, Text};
use crate::tokens::Kind;
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

/// Options by which the compiler names constants that it converts, and writes nothing.
pub(crate) const CONVERSIONS: &[&str] = &[
    "-fsyntax-only",
    "-Wfloat-conversion",
    "-ftrack-macro-expansion=2",
    "-fno-diagnostics-show-caret",
    "-fdiagnostics-color=never",
    "-fmessage-length=0",
    "-Wno-error",
];

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

/// Source whose constants of single precision are cut, as the SPU's compilers cut them.
#[derive(Debug, Default)]
pub(crate) struct Constants {
    /// The source; nothing where no constant changes.
    pub(crate) source: Option<Vec<u8>>,
    /// Lines that name constants that stay rounded.
    pub(crate) warnings: Vec<String>,
}

/// Cuts constants. `check` gives what the compiler says of a text by the options [`CONVERSIONS`].
///
/// # Errors
/// A constant beyond this machine's range, with its line; whatever `check` fails with.
pub(crate) fn constants(
    source: &[u8],
    check: impl FnOnce(&[u8]) -> Result<String, Error>,
) -> Result<Constants, Error> {
    let text = Text::new(source);
    let mut found = Constants::default();
    let mut edits = Edits::default();
    let mut doubles = false;
    for place in 0..text.len() {
        if text.kind(place) != Some(Kind::Number) {
            continue;
        }
        let Some((value, single)) = value(text.at(place)) else {
            continue;
        };
        if single || is_cast(&text, place) {
            edit(&text, place, value, &mut edits)?;
        } else {
            doubles |= text.is_users(place);
        }
    }
    // Only the compiler knows which doubles become floats.
    if doubles {
        convert(&text, &check(&flat(source))?, &mut edits, &mut found)?;
    }
    found.source = (!edits.is_empty()).then(|| edits.apply(source));
    Ok(found)
}

/// Cuts the doubles that the compiler said it converts.
fn convert(
    text: &Text<'_>,
    said: &str,
    edits: &mut Edits,
    found: &mut Constants,
) -> Result<(), Error> {
    let starts = text.line_starts();
    for said in said.lines() {
        let Some((line, column, wanted)) = conversion(said) else {
            continue;
        };
        let start = starts.get(line.saturating_sub(1)).copied();
        let offset = start.unwrap_or(0) + column.saturating_sub(1);
        let named = text.place_of(offset);
        let mut place = named;
        while matches!(text.at(place), b"-" | b"+" | b"(") {
            place += 1;
        }
        // Another value is a part of the expression that the compiler computed.
        let is_wanted =
            |(value, single): (f64, bool)| !single && value.to_bits() == wanted.abs().to_bits();
        if value(text.at(place)).is_some_and(is_wanted) {
            edit(text, place, wanted.abs(), edits)?;
        } else if text.is_users(named) && cut(wanted.abs()) != Cut::Exact {
            let (file, line) = text.position(named);
            // In a list, g++ then writes the double in the float's place.
            if said.contains(LEFT) {
                return Err(Error::Refused(format!(
                    "{file}:{line}: error: floats: the compiler does not make this constant a \
                     float; write it as one number"
                )));
            }
            found.warnings.push(format!(
                "{file}:{line}: warning: floats: this constant is rounded to the nearest float; \
                 write it as one number, which is cut as on the SPU"
            ));
        }
    }
    Ok(())
}

/// The compiler's words of a conversion that it leaves, as of constants in C++.
const LEFT: &str = "changes the value of '";
/// Its words of one that it has made.
const MADE: &str = "changes value from '";

/// Line, column and value of a constant that one of the compiler's lines says it converts.
fn conversion(line: &str) -> Option<(usize, usize, f64)> {
    let (place, message) = line.split_once(": warning: ")?;
    let message = message.strip_prefix("conversion from 'double' to 'float' ")?;
    let value = [MADE, LEFT]
        .iter()
        .find_map(|words| message.strip_prefix(words))?;
    let value = value.split('\'').next()?.parse().ok()?;
    let mut parts = place.rsplitn(3, ':');
    let column = parts.next()?.parse().ok()?;
    let line = parts.next()?.parse().ok()?;
    // Places in headers of macros are not the source's.
    parts
        .next()?
        .ends_with(".i")
        .then_some((line, column, value))
}

/// Value of a decimal number with a fraction or an exponent, and whether it is a float.
fn value(number: &[u8]) -> Option<(f64, bool)> {
    let text = std::str::from_utf8(number).ok()?;
    if text.starts_with("0x") || text.starts_with("0X") || !text.contains(['.', 'e', 'E']) {
        return None;
    }
    let digits = text.strip_suffix(['f', 'F']);
    Some((digits.unwrap_or(text).parse().ok()?, digits.is_some()))
}

/// True for the operand of a cast to float.
fn is_cast(text: &Text<'_>, place: usize) -> bool {
    place >= 3
        && text.at(place - 1) == b")"
        && text.at(place - 2) == b"float"
        && text.at(place - 3) == b"("
}

fn edit(text: &Text<'_>, place: usize, value: f64, edits: &mut Edits) -> Result<(), Error> {
    match cut(value) {
        Cut::Exact => {}
        Cut::Number(number) => edits.replace(text.start(place), text.end(place), number),
        Cut::Beyond => {
            let (file, line) = text.position(place);
            return Err(Error::Refused(format!(
                "{file}:{line}: error: floats: this constant is a number on the SPU, but lies \
                 beyond this machine's floats; make it of its bits"
            )));
        }
    }
    Ok(())
}

/// A positive number as a float.
#[derive(Debug, PartialEq, Eq)]
enum Cut {
    /// It is one.
    Exact,
    /// As much of it as 24 bits have room for, in hexadecimal digits.
    Number(String),
    /// It has no float of this machine's.
    Beyond,
}

fn cut(value: f64) -> Cut {
    let bits = value.to_bits();
    let exponent = i64::try_from(bits >> 52 & 0x7ff).unwrap_or(0) - 1023;
    let fraction = bits & ((1 << 52) - 1);
    if value == 0.0 {
        return Cut::Exact;
    }
    match exponent {
        // The SPU has no numbers below the normal ones.
        ..-126 => Cut::Number("0.0f".into()),
        // Of a float's fraction, 29 bits less than a double's, nothing is lost.
        -126..128 if fraction & ((1 << 29) - 1) == 0 => Cut::Exact,
        -126..128 => Cut::Number(format!("0x1.{:06x}p{exponent}f", fraction >> 29 << 1)),
        128.. => Cut::Beyond,
    }
}

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

    #[test]
    fn constants_are_cut() {
        let source = b"float a = 0.1f, b = -0.1, c = 0.5, d = 1.0 / 3.0; double e = 0.1;\n\
                       float f = (float)0.7;\n";
        // As the compiler says it: columns of the second, the third and the quotient.
        let said = "/tmp/x.i:1:22: warning: conversion from 'double' to 'float' changes value from \
                    '-1.0000000000000001e-1' to '-1.00000001e-1f' [-Wfloat-conversion]\n\
                    /tmp/x.i:1:44: warning: conversion from 'double' to 'float' changes value from \
                    '3.3333333333333331e-1' to '3.33333343e-1f' [-Wfloat-conversion]\n\
                    /tmp/x.i:1:9: warning: conversion from 'double' to 'float' may change value\n";
        let found = constants(source, |_| Ok(said.into())).expect("constants in range");
        let text = String::from_utf8(found.source.expect("changes")).expect("text");
        assert_eq!(
            text,
            "float a = 0x1.999998p-4f, b = -0x1.999998p-4f, c = 0.5, d = 1.0 / 3.0; \
             double e = 0.1;\nfloat f = (float)0x1.666666p-1f;\n"
        );
        assert_eq!(found.warnings.len(), 1, "{:?}", found.warnings);
        // As g++ says it, of a number and of the quotient.
        let left = |column, value| {
            let said = format!(
                "/tmp/x.i:1:{column}: warning: conversion from 'double' to 'float' changes the \
                 value of '{value}' [-Wfloat-conversion]\n"
            );
            constants(source, |_| Ok(said))
        };
        let found = left(22, "-1.0000000000000001e-1").expect("a number");
        assert_eq!(found.source.map(|it| it.len()), Some(text.len()));
        assert!(left(44, "3.3333333333333331e-1").is_err());
        assert_eq!(cut(0.75), Cut::Exact);
        assert_eq!(cut(1e-40), Cut::Number("0.0f".into()));
        assert!(constants(b"float a = 1e39f;", |_| Ok(String::new())).is_err());
        let plain = constants(b"float a = 0.5f; int b = 0x1f;", |_| Ok(String::new()));
        assert!(plain.is_ok_and(|found| found.source.is_none()));
    }
}
