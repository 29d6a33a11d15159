//! Directives: sections, data, symbols, conditions, macros.
//!
//! Must stay true: directives that only debuggers and listings read are known and do nothing; all
//! others do what their manual says or are an error.

use super::expression::{Base, Meaning, Parser, Value};
use super::text::{arguments, cut_name, is_name, shown, trim};
use super::{ALIGN_MAX, Assembler, Condition, Field, Position, SECTIONS_MAX, section, usual};
use crate::object::{ALLOCATED, EXECUTED, NOBITS, NOTE, PROGBITS, WRITABLE};

impl Assembler<'_> {
    /// Does a directive's work; false for a name that is none.
    pub(super) fn directive(
        &mut self,
        name: &str,
        rest: &[u8],
        position: &Position,
    ) -> Result<bool, String> {
        if IGNORED.split(' ').any(|known| known == name) || name.starts_with("cfi_") {
            return Ok(true);
        }
        if self.choose_section(name, rest)? || self.name_symbols(name, rest)? {
            return Ok(true);
        }
        if self.data(name, rest, position)? || self.strings(name, rest)? {
            return Ok(true);
        }
        self.control(name, rest)
    }

    /// True where text is read, not skipped.
    pub(super) fn is_active(&self) -> bool {
        self.conditions.last().is_none_or(|last| last.active)
    }

    /// Conditions, which are read where other text is skipped.
    pub(super) fn conditional(&mut self, word: &[u8], rest: &[u8]) -> Result<bool, String> {
        if let Some(kind) = word.strip_prefix(b".if") {
            let outer = self.is_active();
            let active = outer && self.condition(kind, rest)?;
            self.conditions.push(Condition {
                outer,
                active,
                taken: active,
            });
            return Ok(true);
        }
        if !matches!(word, b".else" | b".elseif" | b".endif") {
            return Ok(false);
        }
        let missing = || format!("{} without .if", shown(word));
        let last = self.conditions.pop().ok_or_else(missing)?;
        if word == b".endif" {
            return Ok(true);
        }
        let may = last.outer && !last.taken;
        let active = may && (word == b".else" || self.condition(b"", rest)?);
        self.conditions.push(Condition {
            active,
            taken: last.taken || active,
            ..last
        });
        Ok(true)
    }

    fn condition(&mut self, kind: &[u8], rest: &[u8]) -> Result<bool, String> {
        self.symbols.here = (self.current, self.offset());
        let both = || match arguments(rest)[..] {
            [left, right] => Ok(left == right),
            _ => Err("two texts must stand here".to_owned()),
        };
        let name = || String::from_utf8_lossy(trim(rest)).into_owned();
        Ok(match kind {
            b"def" => self.symbols.is_defined(&name()),
            b"ndef" | b"notdef" => !self.symbols.is_defined(&name()),
            b"b" => trim(rest).is_empty(),
            b"nb" => !trim(rest).is_empty(),
            b"c" | b"eqs" => both()?,
            b"nc" | b"nes" => !both()?,
            b"" | b"ne" => self.number(rest)? != 0,
            b"eq" => self.number(rest)? == 0,
            b"gt" => self.number(rest)? > 0,
            b"ge" => self.number(rest)? >= 0,
            b"lt" => self.number(rest)? < 0,
            b"le" => self.number(rest)? <= 0,
            _ => return Err(format!(".if{} is not known", shown(kind))),
        })
    }

    /// A number that must be known.
    fn number(&mut self, text: &[u8]) -> Result<i64, String> {
        let mut parser = Parser::new(text, &mut self.symbols);
        let found = parser.expression()?;
        parser.finish()?;
        self.symbols.number(&found)
    }

    /// The numbers of a list, each of which may be empty.
    fn numbers(&mut self, rest: &[u8]) -> Result<Vec<Option<i64>>, String> {
        let all = arguments(rest).into_iter().map(|text| {
            let number = (!text.is_empty()).then(|| self.number(text));
            number.transpose()
        });
        all.collect()
    }

    fn choose_section(&mut self, name: &str, rest: &[u8]) -> Result<bool, String> {
        let chosen = match name {
            "text" | "data" | "bss" if trim(rest).is_empty() || trim(rest) == b"0" => {
                self.section_named(&format!(".{name}"), None)?
            }
            "bss" => return self.reserve(rest),
            "text" | "data" => return Err("subsections are not known".into()),
            "section" => self.section_of(rest)?,
            "pushsection" => {
                if self.pushed.len() >= SECTIONS_MAX {
                    return Err(".pushsection is too deep".into());
                }
                self.pushed.push((self.current, self.previous));
                self.section_of(rest)?
            }
            "popsection" => {
                let last = self
                    .pushed
                    .pop()
                    .ok_or(".popsection without .pushsection")?;
                (self.current, self.previous) = last;
                return Ok(true);
            }
            "previous" => self.previous,
            _ => return Ok(false),
        };
        self.previous = self.current;
        self.current = chosen;
        Ok(true)
    }

    /// The section of `.section NAME,"FLAGS",@TYPE`.
    fn section_of(&mut self, rest: &[u8]) -> Result<usize, String> {
        let all = arguments(rest);
        let name = all.first().copied().unwrap_or_default();
        let name = String::from_utf8_lossy(name).replace('"', "");
        if name.is_empty() {
            return Err(".section needs a name".into());
        }
        let Some(letters) = all.get(1) else {
            return self.section_named(&name, None);
        };
        let mut flags = 0;
        for letter in letters.iter().filter(|byte| **byte != b'"') {
            flags |= match letter {
                b'a' => ALLOCATED,
                b'w' => WRITABLE,
                b'x' => EXECUTED,
                // Groups and equal constants are not joined.
                b'M' | b'S' | b'G' | b'e' | b'o' | b'?' | b'R' => 0,
                _ => return Err(format!("{} are no flags of a section", shown(letters))),
            };
        }
        let kind = all.get(2).map(|text| text.get(1..).unwrap_or_default());
        let kind = match kind {
            Some(b"nobits") => NOBITS,
            Some(b"note") => NOTE,
            Some(b"progbits" | b"init_array" | b"fini_array") => PROGBITS,
            None => usual(&name).0,
            Some(_) => return Err("a section is @progbits, @nobits or @note".into()),
        };
        self.section_named(&name, Some((kind, flags)))
    }

    /// The section of a name, made where it is new.
    fn section_named(&mut self, name: &str, shape: Option<(u32, u32)>) -> Result<usize, String> {
        if let Some(found) = self.section_numbers.get(name) {
            return Ok(*found);
        }
        if self.sections.len() >= SECTIONS_MAX {
            return Err(format!("more than {SECTIONS_MAX} sections"));
        }
        let (kind, flags) = shape.unwrap_or_else(|| usual(name));
        let number = self.sections.len();
        self.sections.push(section(name, kind, flags));
        self.section_numbers.insert(name.into(), number);
        Ok(number)
    }

    /// `.lcomm NAME,BYTES,ALIGNMENT` and `.bss` of the same form.
    fn reserve(&mut self, rest: &[u8]) -> Result<bool, String> {
        let all = arguments(rest);
        let [name, bytes, align @ ..] = &all[..] else {
            return Err("a name and a number of bytes must stand here".into());
        };
        let bytes = self.number(bytes)?;
        let align = match align.first() {
            Some(align) => self.number(align)?,
            None => 16,
        };
        let back = self.current;
        self.current = self.section_named(".bss", None)?;
        let done = self.align(align, None, None);
        let done = done.and_then(|()| self.define_label(name));
        let done = done.and_then(|()| self.fill(bytes, 0));
        self.current = back;
        done.map(|()| true)
    }

    /// Goes on at a value in the section (`.org`).
    pub(super) fn advance(&mut self, to: Value) -> Result<(), String> {
        let here = to.base == Base::Section(self.current) || to.known().is_some();
        if !here || to.minus.is_some() {
            return Err("`.` goes on in its own section".into());
        }
        self.fill(to.number.wrapping_sub(self.offset()), 0)
    }

    /// Goes on at a multiple.
    fn align(&mut self, to: i64, byte: Option<i64>, most: Option<i64>) -> Result<(), String> {
        let to = to.max(1);
        if to > ALIGN_MAX || to & (to - 1) != 0 {
            return Err(format!("an alignment is a power of two up to {ALIGN_MAX}"));
        }
        let count = (to - self.offset() % to) % to;
        if most.is_some_and(|most| most > 0 && count > most) {
            return Ok(());
        }
        let Some(part) = self.sections.get_mut(self.current) else {
            return Ok(());
        };
        part.align = part.align.max(u32::try_from(to).unwrap_or(1));
        let is_code = part.flags & EXECUTED != 0 && part.kind != NOBITS;
        if !is_code || byte.is_some() {
            return self.fill(count, low_byte(byte.unwrap_or(0)));
        }
        // No operations of both pipes in turn.
        self.fill(count % 4, 0)?;
        for left in (1..=count / 4).rev() {
            self.emit(if left % 2 == 1 { &LNOP } else { &NOP })?;
        }
        Ok(())
    }

    /// Numbers, and room.
    fn data(&mut self, name: &str, rest: &[u8], position: &Position) -> Result<bool, String> {
        let bytes = match name {
            "byte" | "1byte" => 1,
            "short" | "hword" | "half" | "2byte" | "value" => 2,
            "word" | "long" | "int" | "4byte" => 4,
            "quad" | "8byte" | "dword" => 8,
            "float" | "single" | "ffloat" | "double" | "dfloat" => {
                for text in arguments(rest) {
                    self.float(text, name.starts_with('d'))?;
                }
                return Ok(true);
            }
            "uleb128" | "sleb128" => {
                for text in arguments(rest) {
                    let number = self.number(text)?;
                    self.leb128(number, name.starts_with('s'))?;
                }
                return Ok(true);
            }
            _ => return self.room(name, rest),
        };
        for text in arguments(rest) {
            // The place of each number, not of the first.
            self.symbols.here = (self.current, self.offset());
            let mut parser = Parser::new(text, &mut self.symbols);
            let mut value = parser.expression()?;
            let mut field = Field::Data(bytes);
            if parser.eat(b"@ppu") {
                field = Field::Host(bytes.max(4));
                // A number may follow the sign.
                if parser.rest.first().is_some_and(|sign| b"+-".contains(sign)) {
                    let more = Box::new((value, parser.expression()?));
                    value = super::Expression::Binary(super::expression::Operator::Add, more);
                }
            }
            parser.finish()?;
            let offset = self.offset();
            self.fill(i64::try_from(bytes).unwrap_or_default(), 0)?;
            self.change(offset, field, value, position)?;
        }
        Ok(true)
    }

    fn room(&mut self, name: &str, rest: &[u8]) -> Result<bool, String> {
        let all = match name {
            "space" | "skip" | "zero" | "fill" | "org" | "align" | "p2align" | "balign" => {
                self.numbers(rest)?
            }
            _ => return Ok(false),
        };
        let at = |place: usize| all.get(place).copied().flatten();
        let first = at(0).ok_or_else(|| format!(".{name} needs a number"))?;
        match name {
            "space" | "skip" | "zero" => self.fill(first, low_byte(at(1).unwrap_or(0)))?,
            "org" => self.fill(first.wrapping_sub(self.offset()), 0)?,
            "balign" => self.align(first, at(1), at(2))?,
            "align" | "p2align" => {
                let shift = u32::try_from(first).ok().filter(|shift| *shift <= 18);
                let shift = shift.ok_or("an alignment is a power of two from 0 to 18")?;
                self.align(1 << shift, at(1), at(2))?;
            }
            _ => {
                let bytes = usize::try_from(at(1).unwrap_or(1)).ok();
                let bytes = bytes.filter(|bytes| *bytes <= 8);
                let bytes = bytes.ok_or(".fill takes numbers of up to 8 bytes")?;
                let value = at(2).unwrap_or(0).to_be_bytes();
                let value = &value[value.len() - bytes..];
                // Checked before memory is taken.
                let whole = usize::try_from(first).ok().and_then(|count| {
                    let whole = count.checked_mul(bytes)?;
                    (whole <= super::SECTION_BYTES_MAX).then_some(count)
                });
                let count = whole.ok_or(".fill makes a section too long")?;
                if !value.is_empty() {
                    self.emit(&value.repeat(count))?;
                }
            }
        }
        Ok(true)
    }

    fn float(&mut self, text: &[u8], double: bool) -> Result<(), String> {
        let bad = || format!("`{}` is no number", shown(text));
        let plain = std::str::from_utf8(text).map_err(|_| bad())?;
        let plain = plain.trim_start_matches("0f").trim_start_matches("0d");
        if double {
            let number = plain.parse::<f64>().map_err(|_| bad())?;
            self.emit(&number.to_bits().to_be_bytes())
        } else {
            let number = plain.parse::<f32>().map_err(|_| bad())?;
            self.emit(&number.to_bits().to_be_bytes())
        }
    }

    fn leb128(&mut self, mut number: i64, signed: bool) -> Result<(), String> {
        loop {
            let byte = low_byte(number & 0x7f);
            number = if signed {
                number >> 7
            } else {
                (number.cast_unsigned() >> 7).cast_signed()
            };
            let sign = byte & 0x40 != 0;
            let ends = if signed {
                (number == 0 && !sign) || (number == -1 && sign)
            } else {
                number == 0
            };
            self.emit(&[if ends { byte } else { byte | 0x80 }])?;
            if ends {
                return Ok(());
            }
        }
    }

    /// Texts, and files as they are.
    fn strings(&mut self, name: &str, rest: &[u8]) -> Result<bool, String> {
        let ends = match name {
            "ascii" => false,
            "asciz" | "string" => true,
            "incbin" => {
                let all = arguments(rest);
                let (file, numbers) = all.split_first().ok_or(".incbin needs a file")?;
                let file = self.file(file)?;
                let mut limits = [0, i64::MAX];
                for (limit, text) in limits.iter_mut().zip(numbers) {
                    *limit = self.number(text)?;
                }
                let [skip, count] = limits.map(|limit| usize::try_from(limit).unwrap_or(0));
                let part = file.get(skip..).unwrap_or_default();
                self.emit(&part[..count.min(part.len())])?;
                return Ok(true);
            }
            _ => return Ok(false),
        };
        for text in arguments(rest) {
            let mut text = text;
            while !text.is_empty() {
                let (bytes, after) = string(text)?;
                self.emit(&bytes)?;
                text = trim(after);
                if ends {
                    self.emit(&[0])?;
                }
            }
        }
        Ok(true)
    }

    /// The contents of a file that source names in quotes.
    fn file(&mut self, text: &[u8]) -> Result<Vec<u8>, String> {
        let (name, _) = string(trim(text))?;
        let name = String::from_utf8_lossy(&name).into_owned();
        (self.files)(&name).ok_or_else(|| format!("cannot read {name}"))
    }

    /// Symbols' reach, type and size.
    fn name_symbols(&mut self, name: &str, rest: &[u8]) -> Result<bool, String> {
        let all = arguments(rest);
        match name {
            "global" | "globl" | "weak" | "local" => {
                for text in all {
                    let symbol = self.symbol(text)?;
                    match name {
                        "weak" => symbol.is_weak = true,
                        "local" => symbol.is_local = true,
                        _ => symbol.is_global = true,
                    }
                }
            }
            "set" | "equ" | "equiv" | "eqv" => {
                let (name, value) = cut_name(rest).ok_or("a name must stand here")?;
                let value = trim(value).strip_prefix(b",");
                self.assign(name, value.ok_or("a comma and a value must follow")?)?;
            }
            "type" => {
                let [name, kind] = all[..] else {
                    return Err(".type needs a name and a type".into());
                };
                let kind = kind.iter().filter(|byte| is_name(**byte)).copied();
                let kind = kind.collect::<Vec<_>>().to_ascii_lowercase();
                self.symbol(name)?.kind = match &kind[..] {
                    b"function" | b"stt_func" => 2,
                    b"object" | b"stt_object" => 1,
                    b"notype" | b"stt_notype" => 0,
                    _ => return Err(format!("{} is no type", shown(&kind))),
                };
            }
            "size" => {
                let (name, value) = cut_name(rest).ok_or("a name must stand here")?;
                let value = trim(value).strip_prefix(b",").ok_or("a size must follow")?;
                let mut parser = Parser::new(value, &mut self.symbols);
                let value = parser.expression()?;
                parser.finish()?;
                self.symbol(name)?.bytes = Some(value);
            }
            "comm" => {
                let name = all.first().copied().unwrap_or_default();
                if self.symbol(name)?.is_local {
                    return self.reserve(rest);
                }
                self.common(&all)?;
            }
            "lcomm" => return self.reserve(rest),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn symbol(&mut self, name: &[u8]) -> Result<&mut super::expression::Symbol, String> {
        let (word, rest) = cut_name(name).ok_or("a name must stand here")?;
        if !trim(rest).is_empty() {
            return Err(format!("`{}` is no name", shown(name)));
        }
        let number = self.symbols.named(&String::from_utf8_lossy(word));
        let found = self.symbols.all.get_mut(number);
        found.ok_or_else(|| "a name must stand here".into())
    }

    /// `.comm NAME,BYTES,ALIGNMENT`.
    fn common(&mut self, all: &[&[u8]]) -> Result<(), String> {
        let [name, bytes, align @ ..] = all else {
            return Err(".comm needs a name and a number of bytes".into());
        };
        let bytes = self.number(bytes)?;
        let align = match align.first() {
            Some(align) => self.number(align)?,
            None => 16,
        };
        let fits = |number: i64| {
            u32::try_from(number)
                .ok()
                .filter(|found| *found <= 0x4_0000)
        };
        let (Some(bytes), Some(align)) = (fits(bytes), fits(align.max(1))) else {
            return Err("a local store has 262144 bytes".into());
        };
        if !align.is_power_of_two() {
            return Err("an alignment is a power of two".into());
        }
        let symbol = self.symbol(name)?;
        if matches!(symbol.meaning, Meaning::Place(..) | Meaning::Formula(_)) {
            return Err(format!("{} is defined twice", symbol.name));
        }
        symbol.meaning = Meaning::Common { bytes, align };
        symbol.is_global = true;
        symbol.kind = 1;
        Ok(())
    }

    /// Macros, repetitions, other files, the end.
    fn control(&mut self, name: &str, rest: &[u8]) -> Result<bool, String> {
        match name {
            "macro" => self.input.define(rest)?,
            "purgem" => self.input.forget(trim(rest)),
            "exitm" => {
                let conditions = self.input.leave()?;
                self.conditions.truncate(conditions);
            }
            "rept" => {
                let count = u64::try_from(self.number(rest)?).unwrap_or(0);
                self.input.repeat(count)?;
            }
            "irp" => self.input.repeat_for(rest, false)?,
            "irpc" => self.input.repeat_for(rest, true)?,
            "include" => {
                let (name, _) = string(trim(rest))?;
                let text = self.file(rest)?;
                self.input.open(&text, &String::from_utf8_lossy(&name))?;
            }
            "end" => self.input.end(),
            "err" | "error" | "abort" => {
                let text = string(trim(rest)).map(|found| found.0).unwrap_or_default();
                return Err(format!(".{name} {}", shown(&text)));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// The bytes of the string that text begins with, and the rest.
fn string(text: &[u8]) -> Result<(Vec<u8>, &[u8]), String> {
    let open = || "a text in quotes must stand here".to_owned();
    let mut rest = text.strip_prefix(b"\"").ok_or_else(open)?;
    let mut bytes = Vec::new();
    loop {
        let (byte, after) = rest.split_first().ok_or("a text is not closed")?;
        rest = after;
        match byte {
            b'"' => return Ok((bytes, rest)),
            b'\\' => {}
            byte => {
                bytes.push(*byte);
                continue;
            }
        }
        let (letter, after) = rest.split_first().ok_or("a text is not closed")?;
        let (digits, radix, start) = match letter {
            b'0'..=b'7' => (3, 8, rest),
            b'x' | b'X' => (2, 16, after),
            _ => (0, 10, after),
        };
        rest = after;
        if digits == 0 {
            bytes.push(match letter {
                b'n' => b'\n',
                b't' => b'\t',
                b'r' => b'\r',
                b'b' => 8,
                b'f' => 12,
                other => *other,
            });
            continue;
        }
        let mut number = 0;
        rest = start;
        for _ in 0..digits {
            let digit = rest
                .first()
                .and_then(|byte| char::from(*byte).to_digit(radix));
            let Some(digit) = digit else { break };
            number = number * radix + digit;
            rest = &rest[1..];
        }
        bytes.push(number.to_le_bytes()[0]);
    }
}

/// The lowest byte of a number.
fn low_byte(number: i64) -> u8 {
    number.to_le_bytes()[0]
}

/// `nop` and `lnop`: no operations of the even and of the odd pipe.
const NOP: [u8; 4] = 0x4020_0000_u32.to_be_bytes();
const LNOP: [u8; 4] = 0x0020_0000_u32.to_be_bytes();

/// Directives for debuggers, listings and other systems.
const IGNORED: &str = "file ident loc loc_mark_labels brinfo title sbttl list nolist eject \
    psize version extern hidden protected internal warning print code line ln stabs stabn stabd \
    addrsig addrsig_sym";
