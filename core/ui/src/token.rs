//! The secret in the page's address.
//!
//! Why here: any user of the machine can connect to a port of the loopback. Only the address that
//! was printed to its owner opens the page. Must stay true: 128 bits of the system's randomness,
//! new in each run; compared in a time that depends on the length alone; never logged.

use subtle::ConstantTimeEq;

/// Characters of a token: hexadecimal digits, four bits each.
pub(crate) const TOKEN_CHARS: usize = 32;

/// A secret of this run.
#[derive(Clone)]
pub(crate) struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// Draws one. Waits for the system's randomness where the machine has just booted.
    pub(crate) fn draw() -> std::io::Result<Self> {
        let mut bytes = [0u8; TOKEN_CHARS / 2];
        let mut drawn = 0;
        while drawn < bytes.len() {
            let flags = rustix::rand::GetRandomFlags::empty();
            match rustix::rand::getrandom(&mut bytes[drawn..], flags) {
                Ok(count) => drawn += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Self(
            bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        ))
    }

    /// True if `word` is the token.
    pub(crate) fn is(&self, word: &str) -> bool {
        self.0.as_bytes().ct_eq(word.as_bytes()).into()
    }

    /// Its characters, for the address that the owner gets.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_drawn_anew_and_fits_itself_alone() {
        let (one, two) = (Token::draw().unwrap(), Token::draw().unwrap());
        assert_eq!(one.reveal().len(), TOKEN_CHARS);
        assert!(one.is(one.reveal()));
        assert!(!one.is(two.reveal()));
        assert!(!one.is(""));
        assert!(!one.is(&one.reveal()[1..]));
        assert!(!one.is(&format!("{}0", one.reveal())));
        assert!(!format!("{one:?}").contains(one.reveal()));
    }
}
