//! Operands of an instruction: numbers, registers, addresses; loads and stores.

use super::*;

impl Code<'_> {
    pub(super) fn access(&mut self, access: &Access, operands: &[String]) -> Option<String> {
        let [register, place @ ..] = operands else {
            return None;
        };
        let address = if access.indexed {
            self.indexed(place)?
        } else {
            let [place] = place else { return None };
            self.address(place)?
        };
        let kind = access.kind;
        let place = format!("__sidecore_at({kind}, {address})");
        let turn = |value: &str| match (access.turned, kind) {
            (true, "u16") => format!("__builtin_bswap16({value})"),
            (true, "u32") => format!("__builtin_bswap32({value})"),
            (true, _) => format!("__builtin_bswap64({value})"),
            _ => value.to_owned(),
        };
        if kind.starts_with('f') {
            let register = self.float(register)?;
            return Some(if access.stores {
                format!("{place} = {register}")
            } else {
                format!("{register} = {place}")
            });
        }
        if access.stores {
            let register = self.register(register).ok()?;
            // What is stored has no sign; the casts cut it to its bytes.
            let unsigned = kind.replace('s', "u");
            let value = turn(&format!("(__sidecore_{unsigned}){register}"));
            return Some(format!("{place} = {value}"));
        }
        let value = turn(&place);
        // By a signed type of 64 bits, so that `lha` and `lwa` extend the sign.
        self.put(register, &format!("(long long){value}"))
    }

    /// The address of `8(%1)` or of an operand in memory.
    pub(super) fn address(&mut self, text: &str) -> Option<String> {
        if let Some(operand) = self.operand(text)
            && self.kinds[operand] == Some(Kind::Memory)
        {
            return Some(format!("__sidecore_o{operand}"));
        }
        let (offset, rest) = text.split_once('(')?;
        let base = rest.strip_suffix(')')?;
        let offset = if offset.trim().is_empty() {
            "0".to_owned()
        } else {
            self.number(offset)?
        };
        // As a base, register 0 is the number 0.
        if is_zero(base) {
            return Some(offset);
        }
        Some(format!("({} + {offset})", self.register(base).ok()?))
    }

    /// The address of two registers, or of an operand in memory that stands for both.
    pub(super) fn indexed(&mut self, operands: &[String]) -> Option<String> {
        match operands {
            [both] => {
                let text = both.replace("%y", "%");
                let operand = self.operand(&text)?;
                let memory = self.kinds[operand] == Some(Kind::Memory);
                memory.then(|| format!("__sidecore_o{operand}"))
            }
            [first, second] => {
                let second = self.register(second).ok()?;
                if is_zero(first) {
                    return Some(second);
                }
                Some(format!("({} + {second})", self.register(first).ok()?))
            }
            _ => None,
        }
    }

    /// The operand that `%1` or `%[name]` names.
    pub(super) fn operand(&self, text: &str) -> Option<usize> {
        let name = text.strip_prefix('%')?;
        let found = if let Some(name) = name.strip_prefix('[') {
            let name = name.strip_suffix(']')?;
            let mut all = self.statement.operands.iter();
            all.position(|operand| operand.name == name)?
        } else {
            name.parse().ok()?
        };
        (found < self.statement.operands.len()).then_some(found)
    }

    /// Writes a value into a register.
    pub(super) fn put(&mut self, text: &str, value: &str) -> Option<String> {
        if let Some(number) = register_number(text) {
            // The stack's, the tables' and the thread's.
            if matches!(number.as_str(), "1" | "2" | "13") {
                return None;
            }
            self.numbered.insert(number);
        }
        let register = self.register(text).ok()?;
        Some(format!("{register} = (unsigned long long)({value})"))
    }

    /// The variable of a register.
    pub(super) fn register(&mut self, text: &str) -> Result<String, String> {
        let unknown = || format!("operand `{text}` is not known here");
        if let Some(low) = text.strip_prefix("%L") {
            let operand = self.operand(&format!("%{low}")).ok_or_else(unknown)?;
            self.pairs.insert(operand);
            return Ok(format!("__sidecore_low{operand}"));
        }
        if let Some(operand) = self.operand(text) {
            return match self.kinds[operand] {
                Some(Kind::Register | Kind::Number) => Ok(self.variable(operand)),
                _ => Err(unknown()),
            };
        }
        let number = register_number(text).ok_or_else(unknown)?;
        // Its value would be the compiler's, which C has no name for.
        if !self.numbered.contains(&number) {
            return Err(format!("register {number} is read before it is written"));
        }
        Ok(format!("__sidecore_r{number}"))
    }

    pub(super) fn float(&mut self, text: &str) -> Option<String> {
        let operand = self.operand(text)?;
        (self.kinds[operand] == Some(Kind::Float)).then(|| self.variable(operand))
    }

    /// The variable of an operand: an input that shares an output's register has that one.
    pub(super) fn variable(&self, operand: usize) -> String {
        let operand = matched(&self.statement.operands[operand]).unwrap_or(operand);
        format!("__sidecore_o{operand}")
    }

    /// A number, within which operands may stand.
    pub(super) fn number(&mut self, text: &str) -> Option<String> {
        let mut all = String::from("(");
        let mut rest = text;
        while let Some(at) = rest.find('%') {
            let (before, behind) = rest.split_at(at);
            let length = if behind[1..].starts_with('[') {
                behind.find(']')? + 1
            } else {
                let digits = behind[1..].bytes().take_while(u8::is_ascii_digit);
                digits.count() + 1
            };
            all.push_str(arithmetic(before)?);
            let operand = self.operand(&behind[..length])?;
            match self.kinds[operand] {
                Some(Kind::Register | Kind::Number) => all.push_str(&self.variable(operand)),
                _ => return None,
            }
            rest = &behind[length..];
        }
        all.push_str(arithmetic(rest)?);
        all.push(')');
        (all.len() > 2).then_some(all)
    }
}

/// A load or store.
#[derive(Debug)]
pub(super) struct Access {
    stores: bool,
    /// The end of the name of `sidecore_powerpc.h`'s type.
    kind: &'static str,
    indexed: bool,
    /// True where bytes are reversed.
    turned: bool,
}

/// The load or store of a name; those that change their address's register are none of these.
pub(super) fn access(name: &str) -> Option<Access> {
    let stores = name.starts_with("st");
    let rest = name.strip_prefix(if stores { "st" } else { "l" })?;
    let (rest, indexed) = rest
        .strip_suffix('x')
        .map_or((rest, false), |rest| (rest, true));
    let (rest, turned) = match rest.strip_suffix("br") {
        Some(rest) if indexed => (rest, true),
        _ => (rest, false),
    };
    let kind = match (stores, turned, rest) {
        (true, false, "b") | (false, false, "bz") => "u8",
        (true, _, "h") | (false, false, "hz") | (false, true, "h") => "u16",
        (true, _, "w") | (false, false, "wz") | (false, true, "w") => "u32",
        (_, _, "d") => "u64",
        (false, false, "ha") => "s16",
        (false, false, "wa") => "s32",
        (_, false, "fs") => "f32",
        (_, false, "fd") => "f64",
        _ => return None,
    };
    Some(Access {
        stores,
        kind,
        indexed,
        turned,
    })
}
