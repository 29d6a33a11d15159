//! Registers and their elements, and the arithmetic, logic, shifts and shuffles of integers on
//! them.
//!
//! Must stay true: a register's first word is the one that the store has first; nothing here traps;
//! counts of shifts have as many bits as the document says.

/// A register: four words, the first of them in the preferred slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C, align(16))]
pub struct Quadword(pub [u32; 4]);

impl Quadword {
    /// The register of 16 bytes, as they lie in the store.
    #[must_use]
    pub fn of_bytes(bytes: [u8; 16]) -> Self {
        Self::of_whole(u128::from_be_bytes(bytes))
    }

    /// Its bytes, as they lie in the store.
    #[must_use]
    pub fn bytes(self) -> [u8; 16] {
        self.whole().to_be_bytes()
    }

    /// The register of two doublewords.
    #[must_use]
    pub fn of_doubles([left, right]: [u64; 2]) -> Self {
        Self::of_whole(u128::from(left) << 64 | u128::from(right))
    }

    /// Its doublewords.
    #[must_use]
    pub fn doubles(self) -> [u64; 2] {
        let Self([a, b, c, d]) = self;
        [
            u64::from(a) << 32 | u64::from(b),
            u64::from(c) << 32 | u64::from(d),
        ]
    }

    pub(crate) fn of_whole(whole: u128) -> Self {
        let word = |at: usize| {
            let bytes = whole.to_be_bytes();
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Self([word(0), word(4), word(8), word(12)])
    }

    pub(crate) fn whole(self) -> u128 {
        let Self([a, b, c, d]) = self;
        u128::from(a) << 96 | u128::from(b) << 64 | u128::from(c) << 32 | u128::from(d)
    }
}

/// An instruction's fields. Those that its format has not are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fields {
    /// Register that is written, or that a store or branch reads.
    pub rt: u8,
    /// First register that is read.
    pub ra: u8,
    /// Second one; of branches the feature bits of interrupts.
    pub rb: u8,
    /// Third one.
    pub rc: u8,
    /// Number in the instruction: with its sign in formats of 10 and 16 bits.
    pub immediate: i32,
}

/// Registers, and the status of floats.
#[derive(Debug, Clone)]
#[repr(C)]
pub(crate) struct State {
    // The first field, as translated code counts on.
    pub(crate) registers: [Quadword; 128],
    pub(crate) status: Quadword,
}

impl Default for State {
    fn default() -> Self {
        Self {
            registers: [Quadword::default(); 128],
            status: Quadword::default(),
        }
    }
}

impl State {
    #[inline]
    pub(crate) fn get(&self, register: u8) -> Quadword {
        // A field of a register has seven bits.
        self.registers[usize::from(register & 127)]
    }

    #[inline]
    pub(crate) fn set(&mut self, register: u8, value: Quadword) {
        self.registers[usize::from(register & 127)] = value;
    }

    /// The word in a register's preferred slot.
    #[inline]
    pub(crate) fn word(&self, register: u8) -> u32 {
        self.get(register).0[0]
    }

    pub(crate) fn status(&self) -> Quadword {
        self.status
    }

    /// Writes the status; bits without a meaning stay 0.
    pub(crate) fn set_status(&mut self, value: Quadword) {
        let known = [0xf07, 0x3f07, 0x3f07, 0xf07];
        self.status = Quadword(std::array::from_fn(|word| value.0[word] & known[word]));
    }

    /// Sets flags of the words' single precision.
    #[inline]
    pub(crate) fn raise(&mut self, flags: [u32; 4]) {
        for (word, flag) in self.status.0.iter_mut().zip(flags) {
            *word |= flag;
        }
    }

    /// Sets flags of the doublewords, whose place is in the two words in the middle.
    pub(crate) fn raise_doubles(&mut self, [left, right]: [u32; 2]) {
        self.raise([0, left, right, 0]);
    }

    /// Sets the flags of words that were divided by zero.
    pub(crate) fn divided(&mut self, words: [bool; 4]) {
        let flags = words
            .iter()
            .fold(0, |all, zero| all << 1 | u32::from(*zero));
        // These flags stand above the others of the last word.
        self.raise([0, 0, 0, flags << 8]);
    }

    /// The two bits that choose a doubleword's rounding.
    pub(crate) fn rounding(&self, slice: usize) -> u32 {
        // Two bits for each doubleword, the first one's above the second's.
        self.status.0[0] >> (10 - 2 * slice) & 3
    }
}

/// The bits of a number with a sign.
pub(crate) const fn bits(number: i32) -> u32 {
    number.cast_unsigned()
}

/// A doubleword's arithmetic, which keeps its sign.
pub(crate) const fn bits64(number: u64) -> i64 {
    number.cast_signed()
}

/// Four equal words.
pub(crate) const fn words_of(word: u32) -> Quadword {
    Quadword([word; 4])
}

/// A word of two equal halves.
pub(crate) const fn half_twice(number: i32) -> u32 {
    (bits(number) & 0xffff) * 0x1_0001
}

/// A word of four equal bytes.
pub(crate) const fn byte_four(number: i32) -> u32 {
    (bits(number) & 0xff) * 0x0101_0101
}

/// The right half of a word, as a number with a sign.
pub(crate) const fn low(word: u32) -> i16 {
    let [.., a, b] = word.to_be_bytes();
    i16::from_be_bytes([a, b])
}

/// The left half of a word, as a number with a sign.
pub(crate) const fn high(word: u32) -> i16 {
    low(word >> 16)
}

/// The product of the right halves, and a third word.
pub(crate) fn add_product(a: u32, b: u32, c: u32) -> u32 {
    product(low(a), low(b)).wrapping_add(c)
}

/// The product of the left halves, and a third word.
pub(crate) fn add_high_product(a: u32, b: u32, c: u32) -> u32 {
    product(high(a), high(b)).wrapping_add(c)
}

/// The same without signs.
pub(crate) fn add_high_sizes(a: u32, b: u32, c: u32) -> u32 {
    ((a >> 16) * (b >> 16)).wrapping_add(c)
}

pub(crate) fn product(a: i16, b: i16) -> u32 {
    bits(i32::from(a) * i32::from(b))
}

/// 1 where a sum with a carry needs a bit more than a word has.
pub(crate) fn carry(a: u32, b: u32, c: u32) -> u32 {
    u32::from(u64::from(a) + u64::from(b) + u64::from(c) > u64::from(u32::MAX))
}

/// Sum of a word's bytes.
pub(crate) fn sum(word: u32) -> u32 {
    word.to_be_bytes().iter().map(|byte| u32::from(*byte)).sum()
}

/// All bits of a word, or none.
pub(crate) fn all(truth: bool) -> u32 {
    if truth { u32::MAX } else { 0 }
}

/// All bits of a half, or none.
pub(crate) fn all16(truth: bool) -> u16 {
    if truth { u16::MAX } else { 0 }
}

/// All bits of a byte, or none.
pub(crate) fn all8(truth: bool) -> u8 {
    if truth { u8::MAX } else { 0 }
}

/// RT of RA and RB, word by word.
pub(crate) fn words(state: &mut State, fields: &Fields, each: impl Fn(u32, u32) -> u32) {
    let (Quadword(a), Quadword(b)) = (state.get(fields.ra), state.get(fields.rb));
    state.set(
        fields.rt,
        Quadword(std::array::from_fn(|word| each(a[word], b[word]))),
    );
}

/// A register of another and a number.
pub(crate) fn words_with(
    state: &mut State,
    to: u8,
    from: u8,
    number: u32,
    each: impl Fn(u32, u32) -> u32,
) {
    let Quadword(a) = state.get(from);
    state.set(to, Quadword(a.map(|word| each(word, number))));
}

/// RT of RA and the number, word by word.
pub(crate) fn numbers(state: &mut State, fields: &Fields, each: impl Fn(u32, u32) -> u32) {
    words_with(state, fields.rt, fields.ra, bits(fields.immediate), each);
}

/// RT of RA and words of the number's right half twice.
pub(crate) fn two_halves(state: &mut State, fields: &Fields, each: impl Fn(u32, u32) -> u32) {
    words_with(
        state,
        fields.rt,
        fields.ra,
        half_twice(fields.immediate),
        each,
    );
}

/// RT of RA and words of the number's last byte four times.
pub(crate) fn four_bytes(state: &mut State, fields: &Fields, each: impl Fn(u32, u32) -> u32) {
    words_with(
        state,
        fields.rt,
        fields.ra,
        byte_four(fields.immediate),
        each,
    );
}

/// RT and the number without its sign, or-ed.
pub(crate) fn or_low(state: &mut State, fields: &Fields) {
    let number = bits(fields.immediate) & 0xffff;
    words_with(state, fields.rt, fields.rt, number, |a, b| a | b);
}

/// RT of RA, RB and its own old value.
pub(crate) fn words3(state: &mut State, fields: &Fields, each: impl Fn(u32, u32, u32) -> u32) {
    let third = Fields {
        rc: fields.rt,
        ..*fields
    };
    words_by(state, &third, each);
}

/// RT of RA, RB and RC.
pub(crate) fn words_by(state: &mut State, fields: &Fields, each: impl Fn(u32, u32, u32) -> u32) {
    let (Quadword(a), Quadword(b)) = (state.get(fields.ra), state.get(fields.rb));
    let Quadword(c) = state.get(fields.rc);
    let result = std::array::from_fn(|word| each(a[word], b[word], c[word]));
    state.set(fields.rt, Quadword(result));
}

/// RT of RA and RB, half by half.
pub(crate) fn halves(state: &mut State, fields: &Fields, each: impl Fn(u16, u16) -> u16) {
    words(state, fields, |a, b| by_halves(a, b, &each));
}

/// RT of RA and the number, half by half.
pub(crate) fn halves_with(state: &mut State, fields: &Fields, each: impl Fn(u16, u16) -> u16) {
    let number = half_twice(fields.immediate);
    words_with(state, fields.rt, fields.ra, number, |a, b| {
        by_halves(a, b, &each)
    });
}

fn by_halves(a: u32, b: u32, each: impl Fn(u16, u16) -> u16) -> u32 {
    let left = each(high(a).cast_unsigned(), high(b).cast_unsigned());
    let right = each(low(a).cast_unsigned(), low(b).cast_unsigned());
    u32::from(left) << 16 | u32::from(right)
}

/// RT of RA and RB, byte by byte.
pub(crate) fn bytes(state: &mut State, fields: &Fields, each: impl Fn(u8, u8) -> u8) {
    words(state, fields, |a, b| by_bytes(a, b, &each));
}

/// RT of RA and the number, byte by byte.
pub(crate) fn bytes_with(state: &mut State, fields: &Fields, each: impl Fn(u8, u8) -> u8) {
    let number = byte_four(fields.immediate);
    words_with(state, fields.rt, fields.ra, number, |a, b| {
        by_bytes(a, b, &each)
    });
}

fn by_bytes(a: u32, b: u32, each: impl Fn(u8, u8) -> u8) -> u32 {
    let (a, b) = (a.to_be_bytes(), b.to_be_bytes());
    u32::from_be_bytes(std::array::from_fn(|byte| each(a[byte], b[byte])))
}

/// RT of RA, doubleword by doubleword.
pub(crate) fn doubles(state: &mut State, fields: &Fields, each: impl Fn(u64) -> i64) {
    let [left, right] = state.get(fields.ra).doubles();
    let result = [each(left), each(right)].map(i64::cast_unsigned);
    state.set(fields.rt, Quadword::of_doubles(result));
}

/// RT of RA as a whole and a count.
pub(crate) fn quad(
    state: &mut State,
    fields: &Fields,
    count: u32,
    each: impl Fn(u128, u32) -> u128,
) {
    let value = state.get(fields.ra).whole();
    state.set(fields.rt, Quadword::of_whole(each(value, count)));
}

/// RT of RA as a whole and the number.
pub(crate) fn quad_by(state: &mut State, fields: &Fields, each: impl Fn(u128, u32) -> u128) {
    quad(state, fields, bits(fields.immediate), each);
}

pub(crate) fn rotate_bytes(value: u128, count: u32) -> u128 {
    value.rotate_left(8 * (count & 15))
}

pub(crate) fn above(a: u32, b: u32) -> u32 {
    all(a.cast_signed() > b.cast_signed())
}

pub(crate) fn above16(a: u16, b: u16) -> u16 {
    all16(a.cast_signed() > b.cast_signed())
}

pub(crate) fn above8(a: u8, b: u8) -> u8 {
    all8(a.cast_signed() > b.cast_signed())
}

/// Half of the sum, rounded up.
pub(crate) fn average(a: u8, b: u8) -> u8 {
    // The sum is 2 (a | b) - (a ^ b), so its half needs no ninth bit.
    (a | b) - ((a ^ b) >> 1)
}

/// The right byte with its sign.
pub(crate) fn signed_byte(half: u16) -> u16 {
    (half.cast_signed() << 8 >> 8).cast_unsigned()
}

pub(crate) fn shift_half(value: u16, count: u16) -> u16 {
    // The count has one bit more than the width needs: beyond the width nothing is left.
    value.checked_shl(u32::from(count & 31)).unwrap_or(0)
}

pub(crate) fn shift(value: u32, count: u32) -> u32 {
    value.checked_shl(count & 63).unwrap_or(0)
}

pub(crate) fn shift_bytes(value: u128, count: u32) -> u128 {
    value.checked_shl(8 * (count & 31)).unwrap_or(0)
}

/// Rotations with a mask count to the right by the negative of their count.
pub(crate) fn mask_half(value: u16, count: u16) -> u16 {
    value
        .checked_shr(u32::from(count.wrapping_neg() & 31))
        .unwrap_or(0)
}

pub(crate) fn mask(value: u32, count: u32) -> u32 {
    value.checked_shr(count.wrapping_neg() & 63).unwrap_or(0)
}

pub(crate) fn mask_back(value: u128, count: u32) -> u128 {
    value
        .checked_shr(8 * (count.wrapping_neg() & 31))
        .unwrap_or(0)
}

pub(crate) fn bits_back(value: u128, count: u32) -> u128 {
    value >> (count.wrapping_neg() & 7)
}

pub(crate) fn algebraic_half(value: u16, count: u16) -> u16 {
    // Beyond the width all bits are the sign's.
    (value.cast_signed() >> (count.wrapping_neg() & 31).min(15)).cast_unsigned()
}

pub(crate) fn algebraic(value: u32, count: u32) -> u32 {
    bits(value.cast_signed() >> (count.wrapping_neg() & 63).min(31))
}

/// A mask of bytes by 16 bits.
pub(crate) fn byte_mask(number: u32) -> Quadword {
    mask_by(number, 1)
}

/// A mask of halves by 8 bits.
pub(crate) fn half_mask(number: u32) -> Quadword {
    mask_by(number, 2)
}

/// A mask of words by 4 bits.
pub(crate) fn word_mask(number: u32) -> Quadword {
    mask_by(number, 4)
}

fn mask_by(number: u32, width: usize) -> Quadword {
    let last = 16 / width - 1;
    Quadword::of_bytes(std::array::from_fn(|byte| {
        all8(number >> (last - byte / width) & 1 == 1)
    }))
}

/// RT's first word: the last bit of each element of RA.
pub(crate) fn gather(state: &mut State, fields: &Fields, width: usize) {
    let bytes = state.get(fields.ra).bytes();
    let lasts = bytes.iter().skip(width - 1).step_by(width);
    let gathered = lasts.fold(0, |all, byte| all << 1 | u32::from(byte & 1));
    state.set(fields.rt, Quadword([gathered, 0, 0, 0]));
}

/// RT's first word: all words of RA or-ed.
pub(crate) fn across(state: &mut State, fields: &Fields) {
    let Quadword([a, b, c, d]) = state.get(fields.ra);
    state.set(fields.rt, Quadword([a | b | c | d, 0, 0, 0]));
}

/// RT: bytes of RA and RB by the pattern RC.
pub(crate) fn shuffle(state: &mut State, fields: &Fields) {
    let mut from = [0; 32];
    from[..16].copy_from_slice(&state.get(fields.ra).bytes());
    from[16..].copy_from_slice(&state.get(fields.rb).bytes());
    let chosen = state.get(fields.rc).bytes().map(|choice| match choice {
        // A pattern with its first bit set gives a constant.
        0x80..=0xbf => 0,
        0xc0..=0xdf => 0xff,
        0xe0.. => 0x80,
        place => from[usize::from(place & 31)],
    });
    state.set(fields.rt, Quadword::of_bytes(chosen));
}

/// RT: the pattern that puts an element of `width` bytes at the address of RA and the number.
pub(crate) fn insertion_at(state: &mut State, fields: &Fields, width: u8) {
    // The number's sign is above the four bits that count.
    let address = state.word(fields.ra).wrapping_add(bits(fields.immediate));
    state.set(fields.rt, insertion(address, width));
}

/// The same at the address of RA and RB.
pub(crate) fn insertion_of(state: &mut State, fields: &Fields, width: u8) {
    let address = state.word(fields.ra).wrapping_add(state.word(fields.rb));
    state.set(fields.rt, insertion(address, width));
}

pub(crate) fn insertion(address: u32, width: u8) -> Quadword {
    let start = address.to_le_bytes()[0] & 15 & !(width - 1);
    // A doubleword is the first of its register, and shorter elements lie in the preferred slot.
    let first = 4_u8.saturating_sub(width);
    let mut pattern = [0; 16];
    for (place, byte) in (0..).zip(&mut pattern) {
        *byte = match u8::checked_sub(place, start) {
            Some(inside) if inside < width => first + inside,
            _ => 16 + place,
        };
    }
    Quadword::of_bytes(pattern)
}

/// Bytes of a local store.
pub const STORE_BYTES: usize = 256 * 1024;
/// Bits of an address that count.
pub(crate) const MASK: u32 = 0x3_ffff;

/// A local store. Addresses are below [`STORE_BYTES`] and multiples of what is moved.
pub trait Store {
    /// The quadword at an address.
    fn load(&self, address: u32) -> Quadword;
    /// Puts a quadword at an address.
    fn save(&mut self, address: u32, value: Quadword);
    /// The word at an address.
    fn fetch(&self, address: u32) -> u32;
}
