//! Formats of frames, and the places of their planes in a range of bytes. Pure.
//!
//! Must stay true: sizes and strides are words of a request, so every product and sum of them is
//! checked. A [`Plane`] that was made lies below the end that its frame claims.

use sidecore_bare::width::ToUsize;
use sidecore_engine::KernelError;
use sidecore_sys::SharedSlice;
use std::ops::Range;

/// The widest and the highest frame, in pixels.
pub const FRAME_SIDE_MAX: u32 = 16_384;

/// Format of a YUV frame; bits 0 to 7 of word 1. Chroma planes follow luma without a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum YuvFormat {
    /// Planes Y, U, V; chroma halved in both directions.
    I420 = 1,
    /// Planes Y, V, U; chroma halved in both directions.
    Yv12 = 2,
    /// Planes Y, U, V; chroma halved in width.
    I422 = 3,
    /// Planes Y, U, V of one size.
    I444 = 4,
    /// Planes Y and UV in turn; chroma halved in both directions.
    Nv12 = 5,
    /// Planes Y and VU in turn; chroma halved in both directions.
    Nv21 = 6,
    /// One plane of Y, U, Y, V; chroma halved in width.
    Yuy2 = 7,
    /// One plane of U, Y, V, Y; chroma halved in width.
    Uyvy = 8,
}

impl YuvFormat {
    /// All formats.
    pub const ALL: [Self; 8] = [
        Self::I420,
        Self::Yv12,
        Self::I422,
        Self::I444,
        Self::Nv12,
        Self::Nv21,
        Self::Yuy2,
        Self::Uyvy,
    ];

    /// True if chroma has half of the rows: rows of a request then come in pairs.
    #[must_use]
    pub fn is_halved_in_height(self) -> bool {
        matches!(self, Self::I420 | Self::Yv12 | Self::Nv12 | Self::Nv21)
    }

    /// True if chroma has half of the columns.
    #[must_use]
    pub fn is_halved_in_width(self) -> bool {
        self != Self::I444
    }

    /// True for one plane of all components.
    pub(crate) fn is_packed(self) -> bool {
        matches!(self, Self::Yuy2 | Self::Uyvy)
    }

    /// True for two planes.
    pub(crate) fn is_semi_planar(self) -> bool {
        matches!(self, Self::Nv12 | Self::Nv21)
    }
}

/// Format of an RGB frame; bits 8 to 15 of word 1. One plane; an alpha is put as 255, and not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RgbFormat {
    /// R, G, B.
    Rgb = 1,
    /// B, G, R.
    Bgr = 2,
    /// R, G, B, A.
    Rgba = 3,
    /// B, G, R, A.
    Bgra = 4,
}

impl RgbFormat {
    /// All formats.
    pub const ALL: [Self; 4] = [Self::Rgb, Self::Bgr, Self::Rgba, Self::Bgra];

    /// Bytes of a pixel.
    #[must_use]
    pub fn pixel_bytes(self) -> u32 {
        match self {
            Self::Rgb | Self::Bgr => 3,
            Self::Rgba | Self::Bgra => 4,
        }
    }

    /// Place of the format in tables of all four.
    pub(crate) fn index(self) -> usize {
        usize::from(self as u8) - 1
    }
}

/// Coefficients of luma; bits 16 to 23 of word 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Matrix {
    /// ITU-R BT.601.
    Bt601 = 1,
    /// ITU-R BT.709.
    Bt709 = 2,
    /// ITU-R BT.2020, non-constant luminance.
    Bt2020 = 3,
}

impl Matrix {
    /// All matrices.
    pub const ALL: [Self; 3] = [Self::Bt601, Self::Bt709, Self::Bt2020];
}

/// Range of YUV values; bits 24 to 31 of word 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Levels {
    /// Luma 16 to 235, chroma 16 to 240.
    Limited = 1,
    /// 0 to 255.
    Full = 2,
}

impl Levels {
    /// Both ranges.
    pub const ALL: [Self; 2] = [Self::Limited, Self::Full];
}

/// A conversion between two frames of one size: the words of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conversion {
    /// Format of the YUV side.
    pub yuv: YuvFormat,
    /// Format of the RGB side.
    pub rgb: RgbFormat,
    /// Coefficients of luma.
    pub matrix: Matrix,
    /// Range of the YUV values.
    pub levels: Levels,
    /// Columns, 1 to [`FRAME_SIDE_MAX`].
    pub width: u32,
    /// Rows, 1 to [`FRAME_SIDE_MAX`].
    pub height: u32,
    /// Bytes from a row to the next of luma or of the one plane; 0 for rows without a gap.
    pub luma_stride: u32,
    /// The same of each chroma plane.
    pub chroma_stride: u32,
    /// The same of the RGB frame.
    pub rgb_stride: u32,
}

impl Conversion {
    /// Words of a request for these rows of one frame, whose bytes are input 0 and output 0.
    #[must_use]
    pub fn words(&self, rows: &Range<u32>) -> [u64; 6] {
        let formats = [
            self.yuv as u8,
            self.rgb as u8,
            self.matrix as u8,
            self.levels as u8,
        ];
        [
            0,
            u32::from_le_bytes(formats).into(),
            pair(self.width, self.height),
            pair(self.luma_stride, self.chroma_stride),
            self.rgb_stride.into(),
            rows_word(rows),
        ]
    }

    /// Words of a request for `items` rows of a table.
    #[must_use]
    pub fn batch_words(&self, items: u64) -> [u64; 6] {
        let mut words = self.words(&(0..0));
        words[0] = items;
        words
    }

    /// All rows in at most `parts` runs, which requests to several engines may convert at once.
    pub fn bands(&self, parts: u32) -> impl Iterator<Item = Range<u32>> + use<> {
        let height = self.height;
        // Of whole pairs, which halved chroma needs.
        let pairs = height.div_ceil(2).div_ceil(parts.max(1)).max(1);
        let rows = pairs.saturating_mul(2);
        (0..height)
            .step_by(rows.to_usize())
            .map(move |first| first..first.saturating_add(rows).min(height))
    }

    /// Bytes of the YUV frame; none where sizes and strides make no frame.
    #[must_use]
    pub fn yuv_bytes(&self) -> Option<usize> {
        Planes::of_yuv(self)?.bytes()
    }

    /// Bytes of the RGB frame; none where sizes and strides make no frame.
    #[must_use]
    pub fn rgb_bytes(&self) -> Option<usize> {
        Planes::of_rgb(self)?.bytes()
    }

    /// The conversion that a request asks for.
    ///
    /// # Errors
    /// An unknown format, or a size out of range.
    pub(crate) fn of_words(name: &str, words: &[u64; 6]) -> Result<Self, KernelError> {
        let refused = |what: &str| KernelError::failed(format!("{name}: {what}"));
        let [_, formats, size, yuv_strides, rgb_stride, _] = *words;
        let [yuv, rgb, matrix, levels, rest @ ..] = formats.to_le_bytes();
        let known = || {
            Some((
                YuvFormat::ALL.into_iter().find(|it| *it as u8 == yuv)?,
                RgbFormat::ALL.into_iter().find(|it| *it as u8 == rgb)?,
                Matrix::ALL.into_iter().find(|it| *it as u8 == matrix)?,
                Levels::ALL.into_iter().find(|it| *it as u8 == levels)?,
            ))
        };
        let Some((yuv, rgb, matrix, levels)) = known().filter(|_| rest == [0; 4]) else {
            return Err(refused(&format!("no formats {formats:#x}")));
        };
        let (width, height) = halves(size);
        let sides = 1..=FRAME_SIDE_MAX;
        if !sides.contains(&width) || !sides.contains(&height) {
            return Err(refused(&format!("no frame of {width} x {height}")));
        }
        let (luma_stride, chroma_stride) = halves(yuv_strides);
        let Ok(rgb_stride) = u32::try_from(rgb_stride) else {
            return Err(refused("a stride of over 4 GiB"));
        };
        Ok(Self {
            yuv,
            rgb,
            matrix,
            levels,
            width,
            height,
            luma_stride,
            chroma_stride,
            rgb_stride,
        })
    }

    /// The rows that a word names; 0 stands for all. None where they are not in the frame, or cut
    /// a pair of rows that share chroma.
    pub(crate) fn rows(&self, word: u64) -> Option<Range<u32>> {
        if word == 0 {
            return Some(0..self.height);
        }
        let (first, count) = halves(word);
        let end = first.checked_add(count)?;
        let is_whole = |row: u32| row.is_multiple_of(2) || row == self.height;
        let are_pairs = !self.yuv.is_halved_in_height() || (is_whole(first) && is_whole(end));
        (count > 0 && end <= self.height && are_pairs).then_some(first..end)
    }
}

/// The word that stands for these rows in a request or a table; 0 for none, which means all.
#[must_use]
pub fn rows_word(rows: &Range<u32>) -> u64 {
    pair(rows.start, rows.end.saturating_sub(rows.start))
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// A plane of a frame.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Plane {
    /// Place of its first byte in the frame.
    start: usize,
    /// Bytes from a row to the next.
    stride: usize,
    /// Bytes of a row.
    pub(crate) row_bytes: usize,
    /// Number of its rows.
    rows: usize,
    /// True if it has one row for two of the frame.
    is_halved: bool,
}

impl Plane {
    fn new(
        start: usize,
        stride: u32,
        row_bytes: usize,
        rows: usize,
        is_halved: bool,
    ) -> Option<Self> {
        let stride = match stride.to_usize() {
            0 => row_bytes,
            // Rows would overlap.
            less if less < row_bytes => return None,
            stride => stride,
        };
        Some(Self {
            start,
            stride,
            row_bytes,
            rows,
            is_halved,
        })
    }

    /// End of the last row's bytes; and where a plane behind it begins.
    fn end(&self) -> Option<usize> {
        let last = self.stride.checked_mul(self.rows.checked_sub(1)?)?;
        self.start.checked_add(last)?.checked_add(self.row_bytes)
    }

    fn next(&self) -> Option<usize> {
        self.start.checked_add(self.stride.checked_mul(self.rows)?)
    }

    /// Its rows that belong to these of the frame.
    fn own(&self, rows: &Range<u32>) -> Range<usize> {
        match self.is_halved {
            false => rows.start.to_usize()..rows.end.to_usize(),
            true => rows.start.to_usize() / 2..rows.end.to_usize().div_ceil(2),
        }
    }

    /// Bytes of the rows that belong to these of the frame, without gaps.
    pub(crate) fn bytes(&self, rows: &Range<u32>) -> usize {
        self.own(rows).len() * self.row_bytes
    }

    /// Copies its part of these rows of the frame, without gaps. `frame` is as long as its planes
    /// say.
    pub(crate) fn get(&self, frame: SharedSlice<'_>, rows: &Range<u32>, target: &mut [u8]) {
        let own = self.own(rows);
        if self.stride == self.row_bytes {
            frame.read_at(self.start + own.start * self.stride, target);
            return;
        }
        for (row, target) in own.zip(target.chunks_exact_mut(self.row_bytes)) {
            frame.read_at(self.start + row * self.stride, target);
        }
    }

    /// The reverse of [`Self::get`]: bytes between rows stay as they are.
    pub(crate) fn put(&self, frame: SharedSlice<'_>, rows: &Range<u32>, source: &[u8]) {
        let own = self.own(rows);
        if self.stride == self.row_bytes {
            frame.write_at(self.start + own.start * self.stride, source);
            return;
        }
        for (row, source) in own.zip(source.chunks_exact(self.row_bytes)) {
            frame.write_at(self.start + row * self.stride, source);
        }
    }
}

/// The planes of one side's frames.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Planes {
    planes: [Plane; 3],
    count: usize,
}

impl Planes {
    /// The planes of the YUV frames; none where the strides do not fit.
    pub(crate) fn of_yuv(conversion: &Conversion) -> Option<Self> {
        let format = conversion.yuv;
        let (width, height) = (conversion.width.to_usize(), conversion.height.to_usize());
        let half = width.div_ceil(2);
        let mut planes = [Plane::default(); 3];
        if format.is_packed() {
            planes[0] = Plane::new(0, conversion.luma_stride, 4 * half, height, false)?;
            return Self::checked(planes, 1);
        }
        planes[0] = Plane::new(0, conversion.luma_stride, width, height, false)?;
        let count = if format.is_semi_planar() { 2 } else { 3 };
        let row_bytes = match format {
            YuvFormat::I444 => width,
            YuvFormat::Nv12 | YuvFormat::Nv21 => 2 * half,
            _ => half,
        };
        let is_halved = format.is_halved_in_height();
        let rows = if is_halved {
            height.div_ceil(2)
        } else {
            height
        };
        for place in 1..count {
            let start = planes[place - 1].next()?;
            let stride = conversion.chroma_stride;
            planes[place] = Plane::new(start, stride, row_bytes, rows, is_halved)?;
        }
        Self::checked(planes, count)
    }

    /// The plane of the RGB frames; none where the stride does not fit.
    pub(crate) fn of_rgb(conversion: &Conversion) -> Option<Self> {
        let row_bytes = conversion.width.to_usize() * conversion.rgb.pixel_bytes().to_usize();
        let rows = conversion.height.to_usize();
        let plane = Plane::new(0, conversion.rgb_stride, row_bytes, rows, false)?;
        Self::checked([plane, Plane::default(), Plane::default()], 1)
    }

    /// Only where the end of the last plane is a number.
    fn checked(planes: [Plane; 3], count: usize) -> Option<Self> {
        let planes = Self { planes, count };
        planes.bytes().is_some().then_some(planes)
    }

    /// The planes in their order.
    pub(crate) fn each(&self) -> &[Plane] {
        &self.planes[..self.count]
    }

    /// Bytes of a frame.
    pub(crate) fn bytes(&self) -> Option<usize> {
        self.each().last()?.end()
    }

    /// Bytes of these rows of all planes, without gaps.
    pub(crate) fn row_bytes(&self, rows: &Range<u32>) -> usize {
        self.each().iter().map(|plane| plane.bytes(rows)).sum()
    }

    /// Copies these rows of all planes, one plane after the other, without gaps.
    pub(crate) fn get(&self, frame: SharedSlice<'_>, rows: &Range<u32>, mut target: &mut [u8]) {
        for plane in self.each() {
            let (part, rest) = target.split_at_mut(plane.bytes(rows));
            plane.get(frame, rows, part);
            target = rest;
        }
    }

    /// The reverse of [`Self::get`].
    pub(crate) fn put(&self, frame: SharedSlice<'_>, rows: &Range<u32>, mut source: &[u8]) {
        for plane in self.each() {
            let (part, rest) = source.split_at(plane.bytes(rows));
            plane.put(frame, rows, part);
            source = rest;
        }
    }
}
