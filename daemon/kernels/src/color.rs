//! Colour conversion between YUV and RGB frames of 8 bits: the kernels `yuv_to_rgb` and
//! `rgb_to_yuv`.
//!
//! A request's words are those of [`Conversion::words`]. Without a table, input 0 is a frame and
//! output 0 gets the other; word 5 names the rows, and 0 stands for all. Word 0 of the reply is the
//! bytes put. With word 0 = N, input 1 has N rows of five words: offset and length of a frame in
//! input 0, offset and room of its result in output 0, and the rows as in word 5. Output 1 gets N
//! results of two words: bytes put, and an [`ItemStatus`]. Word 0 of the reply is N, word 1 the
//! number of items that were not done. So a frame is split over engines by requests for a band of
//! its rows each ([`Conversion::bands`]): each puts its own rows alone.
//!
//! Halved chroma is the mean of its pixels one way, and repeated the other way. At an odd edge the
//! last column or row is a pair by itself.
//!
//! Must stay true: a request works in pieces of [`PIECE_BYTES`], whose input is copied once; after
//! each it looks whether to go on. Bytes between rows are neither read nor put. Sources: ITU-R
//! BT.601, BT.709 and BT.2020; the arithmetic is that of the crate `yuv`, within two levels of
//! their formulas.

mod frame;

pub use frame::{Conversion, FRAME_SIDE_MAX, Levels, Matrix, RgbFormat, YuvFormat, rows_word};

use crate::table::{self, Budget, ItemStatus, REQUEST_BYTES_MAX, Stop, Table, go_on};
use frame::Planes;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_daemon::served::{Cx, Memory, Reply, Request, Served};
use sidecore_engine::KernelError;
use sidecore_sys::SharedSlice;
use std::ops::Range;
use yuv::{
    BufferStoreMut, YuvBiPlanarImage, YuvBiPlanarImageMut, YuvConversionMode, YuvError,
    YuvPlanarImage, YuvPlanarImageMut, YuvRange, YuvStandardMatrix,
};

/// Bytes of RGB that are converted between two looks at whether to go on, at least two rows.
pub const PIECE_BYTES: usize = 256 << 10;

/// The kernel `yuv_to_rgb`.
pub(crate) type YuvToRgb = Convert<true>;

/// The kernel `rgb_to_yuv`.
pub(crate) type RgbToYuv = Convert<false>;

/// One direction.
#[derive(Debug)]
pub(crate) struct Convert<const TO_RGB: bool>;

/// An engine's copies of a piece, without gaps between rows.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    yuv: Vec<u8>,
    rgb: Vec<u8>,
    /// Planes of a packed format.
    planar: Vec<u8>,
}

/// A request's conversion, checked, and the planes of both sides.
struct Job {
    name: &'static str,
    conversion: Conversion,
    yuv: Planes,
    rgb: Planes,
}

impl<const TO_RGB: bool> Served for Convert<TO_RGB> {
    const NAME: &'static str = if TO_RGB { "yuv_to_rgb" } else { "rgb_to_yuv" };
    const LS: usize = table::store_bytes(ROW_WORDS, RESULT_BYTES);
    type State = Pieces;

    fn engine<'c>(
        cx: &mut Cx<'c, Self>,
        request: &Request,
        memory: &'c Memory<'c>,
    ) -> Result<Reply, KernelError> {
        let (data, output) = (memory.input(0)?, memory.output(0)?);
        let [count, .., rows] = request.words;
        let job = Job::of_words(Self::NAME, &request.words)?;
        let mut budget = Budget::new(Self::NAME, REQUEST_BYTES_MAX);
        let state = &mut *cx.state;
        if count == 0 {
            let done = state.frame::<TO_RGB>(&job, (data, output), rows, memory, &mut budget);
            return match done {
                Ok(bytes) => Ok(Reply::word(bytes.to_u64())),
                Err(Stop::Request(error)) => Err(error),
                Err(Stop::Item(status)) => Err(job.refused(status)),
            };
        }
        let results = (memory.output(1)?, RESULT_BYTES);
        let rows = (memory.input(1)?, 0, ROW_WORDS);
        let table = Table::new(Self::NAME, count, rows, results)?;
        let mut failures = 0;
        table.each::<ROW_WORDS, RESULT_BYTES>(cx.store, cx.mfc, |row, result| {
            let &[offset, bytes, to, room, rows] = row;
            let source = table::part(data, offset, bytes);
            let done = match source.zip(table::part(output, to, room)) {
                Some(both) => state.frame::<TO_RGB>(&job, both, rows, memory, &mut budget),
                // A wrong row costs its own item only.
                None => Err(Stop::Item(ItemStatus::BadRow)),
            };
            *result = table::settled(done, &mut failures)?;
            Ok(())
        })?;
        let mut reply = Reply::word(count);
        reply.words[1] = failures;
        Ok(reply)
    }
}

impl Job {
    /// # Errors
    /// Formats, sizes or strides that make no frame.
    fn of_words(name: &'static str, words: &[u64; 6]) -> Result<Self, KernelError> {
        let conversion = Conversion::of_words(name, words)?;
        let planes = Planes::of_yuv(&conversion).zip(Planes::of_rgb(&conversion));
        let (yuv, rgb) = planes
            .ok_or_else(|| KernelError::failed(format!("{name}: a stride less than a row")))?;
        Ok(Self {
            name,
            conversion,
            yuv,
            rgb,
        })
    }

    /// The error of a request of one frame that was not done.
    fn refused(&self, status: ItemStatus) -> KernelError {
        let what = match status {
            ItemStatus::NoRoom => "the output is too short",
            _ => "rows or input are not of that frame",
        };
        KernelError::failed(format!("{}: {what}", self.name))
    }

    /// Rows of a piece: whole pairs.
    fn piece_rows(&self) -> u32 {
        let pair = 2 * self.rgb.row_bytes(&(0..1));
        let pairs = u32::try_from(PIECE_BYTES / pair).unwrap_or(1);
        2 * pairs.max(1)
    }
}

impl Pieces {
    /// Converts rows of one frame; the bytes that were put.
    fn frame<const TO_RGB: bool>(
        &mut self,
        job: &Job,
        (source, target): (SharedSlice<'_>, SharedSlice<'_>),
        rows: u64,
        memory: &Memory<'_>,
        budget: &mut Budget,
    ) -> Result<usize, Stop> {
        let (from, to) = match TO_RGB {
            true => (&job.yuv, &job.rgb),
            false => (&job.rgb, &job.yuv),
        };
        let is_short = |planes: &Planes, frame: SharedSlice<'_>| {
            planes.bytes().is_none_or(|bytes| bytes > frame.len())
        };
        let rows = match job.conversion.rows(rows) {
            Some(rows) if !is_short(from, source) => rows,
            _ => return Err(Stop::Item(ItemStatus::BadRow)),
        };
        if is_short(to, target) {
            return Err(Stop::Item(ItemStatus::NoRoom));
        }
        budget.take_item(from.row_bytes(&rows) + to.row_bytes(&rows))?;
        for first in rows.clone().step_by(job.piece_rows().to_usize()) {
            go_on(memory)?;
            let piece = first..rows.end.min(first + job.piece_rows());
            self.piece::<TO_RGB>(job, (source, target), &piece)?;
        }
        Ok(to.row_bytes(&rows))
    }

    fn piece<const TO_RGB: bool>(
        &mut self,
        job: &Job,
        (source, target): (SharedSlice<'_>, SharedSlice<'_>),
        rows: &Range<u32>,
    ) -> Result<(), KernelError> {
        let yuv = sized(&mut self.yuv, job.yuv.row_bytes(rows));
        let rgb = sized(&mut self.rgb, job.rgb.row_bytes(rows));
        let view = View {
            conversion: &job.conversion,
            rows: rows.end - rows.start,
        };
        let converted = if TO_RGB {
            job.yuv.get(source, rows, yuv);
            view.decode(yuv, rgb, &mut self.planar)
        } else {
            job.rgb.get(source, rows, rgb);
            view.encode(rgb, yuv, &mut self.planar)
        };
        let name = job.name;
        converted.map_err(|error| KernelError::failed(format!("{name}: {error}")))?;
        match TO_RGB {
            true => job.rgb.put(target, rows, rgb),
            false => job.yuv.put(target, rows, yuv),
        }
        Ok(())
    }
}

/// Rows of a frame whose planes follow one another without gaps.
struct View<'a> {
    conversion: &'a Conversion,
    rows: u32,
}

impl View<'_> {
    /// YUV to RGB. `planar` is memory for a packed format's planes.
    fn decode(&self, yuv: &[u8], rgb: &mut [u8], planar: &mut Vec<u8>) -> Result<(), YuvError> {
        let Conversion { width, rgb: to, .. } = *self.conversion;
        let (stride, levels, matrix) = (self.rgb_stride(), self.levels(), self.matrix());
        let format = self.conversion.yuv;
        if format.is_semi_planar() {
            let (y_plane, uv_plane) = yuv.split_at(self.luma_bytes());
            let image = YuvBiPlanarImage {
                y_plane,
                y_stride: width,
                uv_plane,
                uv_stride: 2 * width.div_ceil(2),
                width,
                height: self.rows,
            };
            let order = usize::from(format == YuvFormat::Nv21);
            let decode = DECODE_PAIRS[order][to.index()];
            return decode(
                &image,
                rgb,
                stride,
                levels,
                matrix,
                YuvConversionMode::Balanced,
            );
        }
        let yuv = match format.is_packed() {
            true => self.unpacked(yuv, planar),
            false => yuv,
        };
        let (luma_stride, chroma_stride) = self.strides();
        let (y_plane, chroma) = yuv.split_at(luma_stride.to_usize() * self.rows.to_usize());
        let (first, second) = chroma.split_at(chroma.len() / 2);
        let (u_plane, v_plane) = match format {
            YuvFormat::Yv12 => (second, first),
            _ => (first, second),
        };
        let image = YuvPlanarImage {
            y_plane,
            y_stride: luma_stride,
            u_plane,
            u_stride: chroma_stride,
            v_plane,
            v_stride: chroma_stride,
            width,
            height: self.rows,
        };
        DECODE[self.sampling()][to.index()](&image, rgb, stride, levels, matrix)
    }

    /// RGB to YUV, likewise.
    fn encode(&self, rgb: &[u8], yuv: &mut [u8], planar: &mut Vec<u8>) -> Result<(), YuvError> {
        let format = self.conversion.yuv;
        if format.is_semi_planar() {
            return self.encode_pairs(rgb, yuv);
        }
        if !format.is_packed() {
            return self.encode_planes(rgb, yuv);
        }
        let planes = sized(planar, yuv.len());
        self.encode_planes(rgb, planes)?;
        self.pack(planes, yuv);
        Ok(())
    }

    fn encode_pairs(&self, rgb: &[u8], yuv: &mut [u8]) -> Result<(), YuvError> {
        let Conversion {
            width, rgb: from, ..
        } = *self.conversion;
        let (y_plane, uv_plane) = yuv.split_at_mut(self.luma_bytes());
        let mut image = YuvBiPlanarImageMut {
            y_plane: BufferStoreMut::Borrowed(y_plane),
            y_stride: width,
            uv_plane: BufferStoreMut::Borrowed(uv_plane),
            uv_stride: 2 * width.div_ceil(2),
            width,
            height: self.rows,
        };
        let order = usize::from(self.conversion.yuv == YuvFormat::Nv21);
        ENCODE_PAIRS[order][from.index()](
            &mut image,
            rgb,
            self.rgb_stride(),
            self.levels(),
            self.matrix(),
            YuvConversionMode::Balanced,
        )
    }

    fn encode_planes(&self, rgb: &[u8], yuv: &mut [u8]) -> Result<(), YuvError> {
        let Conversion {
            width, rgb: from, ..
        } = *self.conversion;
        let (luma_stride, chroma_stride) = self.strides();
        let (y_plane, chroma) = yuv.split_at_mut(luma_stride.to_usize() * self.rows.to_usize());
        let (first, second) = chroma.split_at_mut(chroma.len() / 2);
        let (u_plane, v_plane) = match self.conversion.yuv {
            YuvFormat::Yv12 => (second, first),
            _ => (first, second),
        };
        let mut image = YuvPlanarImageMut {
            y_plane: BufferStoreMut::Borrowed(y_plane),
            y_stride: luma_stride,
            u_plane: BufferStoreMut::Borrowed(u_plane),
            u_stride: chroma_stride,
            v_plane: BufferStoreMut::Borrowed(v_plane),
            v_stride: chroma_stride,
            width,
            height: self.rows,
        };
        ENCODE[self.sampling()][from.index()](
            &mut image,
            rgb,
            self.rgb_stride(),
            self.levels(),
            self.matrix(),
            YuvConversionMode::Balanced,
        )
    }

    /// Planes of a packed format, in `planar`.
    fn unpacked<'p>(&self, yuv: &[u8], planar: &'p mut Vec<u8>) -> &'p [u8] {
        let planes = sized(planar, yuv.len());
        let [luma, first, second] = self.places();
        let (y, chroma) = planes.split_at_mut(yuv.len() / 2);
        let (u, v) = chroma.split_at_mut(yuv.len() / 4);
        let (pairs, _) = y.as_chunks_mut::<2>();
        let pixels = yuv.as_chunks::<4>().0.iter();
        for (((four, pair), u), v) in pixels.zip(pairs).zip(u).zip(v) {
            *pair = [four[luma], four[luma + 2]];
            (*u, *v) = (four[first], four[second]);
        }
        planes
    }

    /// The reverse of [`Self::unpacked`]. The second luma of an odd width's last pair repeats the
    /// first: every byte of a result depends on its frame alone.
    fn pack(&self, planes: &[u8], yuv: &mut [u8]) {
        let [luma, first, second] = self.places();
        let pairs_a_row = self.conversion.width.div_ceil(2).to_usize();
        let is_odd = !self.conversion.width.is_multiple_of(2);
        let (y, chroma) = planes.split_at(yuv.len() / 2);
        let (u, v) = chroma.split_at(yuv.len() / 4);
        let pairs = y.as_chunks::<2>().0.iter();
        let (pixels, _) = yuv.as_chunks_mut::<4>();
        for (at, (((four, pair), u), v)) in pixels.iter_mut().zip(pairs).zip(u).zip(v).enumerate() {
            let repeats = is_odd && (at + 1).is_multiple_of(pairs_a_row);
            four[luma] = pair[0];
            four[luma + 2] = pair[usize::from(!repeats)];
            (four[first], four[second]) = (*u, *v);
        }
    }

    /// Places of the first luma and of the chroma in the four bytes of a packed format.
    fn places(&self) -> [usize; 3] {
        match self.conversion.yuv {
            YuvFormat::Uyvy => [1, 0, 2],
            _ => [0, 1, 3],
        }
    }

    /// Strides of luma and of each chroma plane.
    fn strides(&self) -> (u32, u32) {
        let width = self.conversion.width;
        let half = width.div_ceil(2);
        match self.conversion.yuv {
            YuvFormat::I444 => (width, width),
            // A packed row has whole pairs of luma.
            YuvFormat::Yuy2 | YuvFormat::Uyvy => (2 * half, half),
            _ => (width, half),
        }
    }

    fn luma_bytes(&self) -> usize {
        self.conversion.width.to_usize() * self.rows.to_usize()
    }

    fn rgb_stride(&self) -> u32 {
        let Conversion { width, rgb, .. } = *self.conversion;
        // A width has at most 15 bits.
        width * rgb.pixel_bytes()
    }

    /// Place of the format's sampling in the tables below.
    fn sampling(&self) -> usize {
        match self.conversion.yuv {
            YuvFormat::I444 => 2,
            YuvFormat::I422 | YuvFormat::Yuy2 | YuvFormat::Uyvy => 1,
            _ => 0,
        }
    }

    fn levels(&self) -> YuvRange {
        match self.conversion.levels {
            Levels::Limited => YuvRange::Limited,
            Levels::Full => YuvRange::Full,
        }
    }

    fn matrix(&self) -> YuvStandardMatrix {
        match self.conversion.matrix {
            Matrix::Bt601 => YuvStandardMatrix::Bt601,
            Matrix::Bt709 => YuvStandardMatrix::Bt709,
            Matrix::Bt2020 => YuvStandardMatrix::Bt2020,
        }
    }
}

/// The first `bytes` of memory that grows as needed. Never smaller again: frames of an engine are
/// of similar sizes, and zeroing costs.
fn sized(memory: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    if memory.len() < bytes {
        memory.resize(bytes, 0);
    }
    &mut memory[..bytes]
}

type Done = Result<(), YuvError>;
type Decode = fn(&YuvPlanarImage<'_, u8>, &mut [u8], u32, YuvRange, YuvStandardMatrix) -> Done;
type Encode = fn(
    &mut YuvPlanarImageMut<'_, u8>,
    &[u8],
    u32,
    YuvRange,
    YuvStandardMatrix,
    YuvConversionMode,
) -> Done;
type DecodePairs = fn(
    &YuvBiPlanarImage<'_, u8>,
    &mut [u8],
    u32,
    YuvRange,
    YuvStandardMatrix,
    YuvConversionMode,
) -> Done;
type EncodePairs = fn(
    &mut YuvBiPlanarImageMut<'_, u8>,
    &[u8],
    u32,
    YuvRange,
    YuvStandardMatrix,
    YuvConversionMode,
) -> Done;

/// By sampling (4:2:0, 4:2:2, 4:4:4) and RGB format.
const DECODE: [[Decode; 4]; 3] = [
    [
        yuv::yuv420_to_rgb,
        yuv::yuv420_to_bgr,
        yuv::yuv420_to_rgba,
        yuv::yuv420_to_bgra,
    ],
    [
        yuv::yuv422_to_rgb,
        yuv::yuv422_to_bgr,
        yuv::yuv422_to_rgba,
        yuv::yuv422_to_bgra,
    ],
    [
        yuv::yuv444_to_rgb,
        yuv::yuv444_to_bgr,
        yuv::yuv444_to_rgba,
        yuv::yuv444_to_bgra,
    ],
];
const ENCODE: [[Encode; 4]; 3] = [
    [
        yuv::rgb_to_yuv420,
        yuv::bgr_to_yuv420,
        yuv::rgba_to_yuv420,
        yuv::bgra_to_yuv420,
    ],
    [
        yuv::rgb_to_yuv422,
        yuv::bgr_to_yuv422,
        yuv::rgba_to_yuv422,
        yuv::bgra_to_yuv422,
    ],
    [
        yuv::rgb_to_yuv444,
        yuv::bgr_to_yuv444,
        yuv::rgba_to_yuv444,
        yuv::bgra_to_yuv444,
    ],
];

/// By the order of chroma (UV, VU) and RGB format.
const DECODE_PAIRS: [[DecodePairs; 4]; 2] = [
    [
        yuv::yuv_nv12_to_rgb,
        yuv::yuv_nv12_to_bgr,
        yuv::yuv_nv12_to_rgba,
        yuv::yuv_nv12_to_bgra,
    ],
    [
        yuv::yuv_nv21_to_rgb,
        yuv::yuv_nv21_to_bgr,
        yuv::yuv_nv21_to_rgba,
        yuv::yuv_nv21_to_bgra,
    ],
];
const ENCODE_PAIRS: [[EncodePairs; 4]; 2] = [
    [
        yuv::rgb_to_yuv_nv12,
        yuv::bgr_to_yuv_nv12,
        yuv::rgba_to_yuv_nv12,
        yuv::bgra_to_yuv_nv12,
    ],
    [
        yuv::rgb_to_yuv_nv21,
        yuv::bgr_to_yuv_nv21,
        yuv::rgba_to_yuv_nv21,
        yuv::bgra_to_yuv_nv21,
    ],
];

/// Words of a row: offset, length, offset of the output, room there, rows.
const ROW_WORDS: usize = 5;
/// Bytes of a result: bytes put, status.
const RESULT_BYTES: usize = 16;
