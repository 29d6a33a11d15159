//! Colour conversion against the formulas of ITU-R BT.601, BT.709 and BT.2020 in doubles: every
//! format, odd sizes, strides, bands, batches; hostile requests.

use super::{both, call, noise, results, table};
use sidecore_daemon::client::Piece;
use sidecore_kernels::color::{
    Conversion, FRAME_SIDE_MAX, Levels, Matrix, RgbFormat, YuvFormat, rows_word,
};
use sidecore_kernels::{ItemStatus, REQUEST_BYTES_MAX};

/// Byte that `call` fills outputs with.
const UNTOUCHED: u8 = 0xEE;

/// Narrow, odd, and wide enough for the longest vectors.
const SIZES: [(u32, u32); 6] = [(1, 1), (2, 3), (17, 2), (64, 5), (65, 4), (131, 3)];

fn conversion(yuv: YuvFormat, (width, height): (u32, u32)) -> Conversion {
    Conversion {
        yuv,
        rgb: RgbFormat::Rgb,
        matrix: Matrix::Bt601,
        levels: Levels::Limited,
        width,
        height,
        luma_stride: 0,
        chroma_stride: 0,
        rgb_stride: 0,
    }
}

/// Every combination of formats, matrices, levels and sizes; every other one with gaps between
/// rows.
fn conversions() -> Vec<Conversion> {
    let mut all = Vec::new();
    for yuv in YuvFormat::ALL {
        for rgb in RgbFormat::ALL {
            for matrix in Matrix::ALL {
                for levels in Levels::ALL {
                    for size in SIZES {
                        let mut one = Conversion {
                            rgb,
                            matrix,
                            levels,
                            ..conversion(yuv, size)
                        };
                        if all.len() % 2 == 1 {
                            // No row is longer than four bytes a pixel and three more.
                            one.luma_stride = 4 * size.0 + 5;
                            one.chroma_stride = 2 * size.0 + 9;
                            one.rgb_stride = 4 * size.0 + 3;
                        }
                        all.push(one);
                    }
                }
            }
        }
    }
    all
}

/// Columns and rows that a chroma sample stands for.
fn sampling(c: &Conversion) -> (usize, usize) {
    (
        1 + usize::from(c.yuv.is_halved_in_width()),
        1 + usize::from(c.yuv.is_halved_in_height()),
    )
}

/// Place of a sample of Y, U or V (0, 1, 2) in a frame, by the definition of each format.
fn place(c: &Conversion, component: usize, x: usize, y: usize) -> usize {
    let (width, height) = (c.width as usize, c.height as usize);
    let half = width.div_ceil(2);
    let stride = |given: u32, tight: usize| if given == 0 { tight } else { given as usize };
    let packed = |places: [usize; 3]| {
        let step = if component == 0 { 2 } else { 4 };
        y * stride(c.luma_stride, 4 * half) + x * step + places[component]
    };
    let luma = stride(c.luma_stride, width);
    let (_, rows_a_sample) = sampling(c);
    let rows = height.div_ceil(rows_a_sample);
    let planar = |tight: usize, order: [usize; 3]| match component {
        0 => y * luma + x,
        _ => {
            let chroma = stride(c.chroma_stride, tight);
            luma * height + order[component] * chroma * rows + y * chroma + x
        }
    };
    let pairs = |order: [usize; 3]| match component {
        0 => y * luma + x,
        _ => luma * height + y * stride(c.chroma_stride, 2 * half) + 2 * x + order[component],
    };
    match c.yuv {
        YuvFormat::I420 | YuvFormat::I422 => planar(half, [0, 0, 1]),
        YuvFormat::Yv12 => planar(half, [0, 1, 0]),
        YuvFormat::I444 => planar(width, [0, 0, 1]),
        YuvFormat::Nv12 => pairs([0, 0, 1]),
        YuvFormat::Nv21 => pairs([0, 1, 0]),
        YuvFormat::Yuy2 => packed([0, 1, 3]),
        YuvFormat::Uyvy => packed([1, 0, 2]),
    }
}

/// Place of R, G or B of a pixel.
fn rgb_place(c: &Conversion, channel: usize, x: usize, y: usize) -> usize {
    let pixel = c.rgb.pixel_bytes() as usize;
    let stride = match c.rgb_stride {
        0 => c.width as usize * pixel,
        stride => stride as usize,
    };
    let at = match c.rgb {
        RgbFormat::Rgb | RgbFormat::Rgba => channel,
        RgbFormat::Bgr | RgbFormat::Bgra => 2 - channel,
    };
    y * stride + x * pixel + at
}

/// Shares of red and blue in luma; offset and span of luma, span of chroma.
fn constants(c: &Conversion) -> ([f64; 2], [f64; 3]) {
    let shares = match c.matrix {
        Matrix::Bt601 => [0.299, 0.114],
        Matrix::Bt709 => [0.2126, 0.0722],
        Matrix::Bt2020 => [0.2627, 0.0593],
    };
    let spans = match c.levels {
        Levels::Limited => [16.0, 219.0, 224.0],
        Levels::Full => [0.0, 255.0, 255.0],
    };
    (shares, spans)
}

fn yuv_of(c: &Conversion, [r, g, b]: [f64; 3]) -> [f64; 3] {
    let ([red, blue], [offset, luma_span, chroma_span]) = constants(c);
    let y = red * r + (1.0 - red - blue) * g + blue * b;
    let u = (b - y) / (2.0 * (1.0 - blue));
    let v = (r - y) / (2.0 * (1.0 - red));
    [
        offset + y * luma_span / 255.0,
        128.0 + u * chroma_span / 255.0,
        128.0 + v * chroma_span / 255.0,
    ]
}

fn rgb_of(c: &Conversion, [y, u, v]: [f64; 3]) -> [f64; 3] {
    let ([red, blue], [offset, luma_span, chroma_span]) = constants(c);
    let y = (y - offset) * 255.0 / luma_span;
    let (u, v) = (
        (u - 128.0) * 255.0 / chroma_span,
        (v - 128.0) * 255.0 / chroma_span,
    );
    let (r, b) = (y + 2.0 * (1.0 - red) * v, y + 2.0 * (1.0 - blue) * u);
    [r, (y - red * r - blue * b) / (1.0 - red - blue), b]
}

/// A frame of noise within the levels of its format.
fn yuv_frame(c: &Conversion) -> Vec<u8> {
    let mut frame = noise(c.yuv_bytes().unwrap());
    if c.levels == Levels::Limited {
        // Of both luma and chroma.
        frame.iter_mut().for_each(|byte| *byte = 16 + *byte % 220);
    }
    frame
}

fn assert_near(c: &Conversion, got: u8, wanted: f64, levels: f64, at: (usize, usize)) {
    let error = f64::from(got) - wanted.clamp(0.0, 255.0);
    assert!(
        error.abs() <= levels,
        "{got} for {wanted} at {at:?} of {c:?}"
    );
}

/// Checks a decoded frame, and that nothing else was put.
fn check_decoded(c: &Conversion, yuv: &[u8], rgb: &[u8]) {
    let (columns, rows) = sampling(c);
    let mut put = vec![false; rgb.len()];
    for (x, y) in pixels(c) {
        let sample = |component, x, y| f64::from(yuv[place(c, component, x, y)]);
        let (chroma_x, chroma_y) = (x / columns, y / rows);
        let wanted = rgb_of(
            c,
            [
                sample(0, x, y),
                sample(1, chroma_x, chroma_y),
                sample(2, chroma_x, chroma_y),
            ],
        );
        for (channel, wanted) in wanted.into_iter().enumerate() {
            let at = rgb_place(c, channel, x, y);
            put[at] = true;
            assert_near(c, rgb[at], wanted, 2.0, (x, y));
        }
        if c.rgb.pixel_bytes() == 4 {
            let at = rgb_place(c, 0, x, y).max(rgb_place(c, 2, x, y)) + 1;
            put[at] = true;
            assert_eq!(rgb[at], 255);
        }
    }
    check_gaps(c, rgb, &put);
}

/// Checks an encoded frame: chroma is the mean of its pixels.
fn check_encoded(c: &Conversion, rgb: &[u8], yuv: &[u8]) {
    let (columns, rows) = sampling(c);
    let (width, height) = (c.width as usize, c.height as usize);
    let mut put = vec![false; yuv.len()];
    let pixel =
        |x: usize, y: usize| [0, 1, 2].map(|channel| f64::from(rgb[rgb_place(c, channel, x, y)]));
    for (x, y) in pixels(c) {
        let at = place(c, 0, x, y);
        put[at] = true;
        assert_near(c, yuv[at], yuv_of(c, pixel(x, y))[0], 2.0, (x, y));
        if !x.is_multiple_of(columns) || !y.is_multiple_of(rows) {
            continue;
        }
        let (mut sum, mut count) = ([0.0; 3], 0.0);
        for y in y..height.min(y + rows) {
            for x in x..width.min(x + columns) {
                for (sum, value) in sum.iter_mut().zip(pixel(x, y)) {
                    *sum += value;
                }
                count += 1.0;
            }
        }
        let wanted = yuv_of(c, sum.map(|sum| sum / count));
        for component in [1, 2] {
            let at = place(c, component, x / columns, y / rows);
            put[at] = true;
            assert_near(c, yuv[at], wanted[component], 2.0, (x, y));
        }
    }
    if matches!(c.yuv, YuvFormat::Yuy2 | YuvFormat::Uyvy) && width % 2 == 1 {
        // The second luma of the last pair repeats the first.
        for y in 0..height {
            let (last, spare) = (place(c, 0, width - 1, y), place(c, 0, width, y));
            put[spare] = true;
            assert_eq!(yuv[spare], yuv[last]);
        }
    }
    check_gaps(c, yuv, &put);
}

fn pixels(c: &Conversion) -> impl Iterator<Item = (usize, usize)> + use<> {
    let (width, height) = (c.width as usize, c.height as usize);
    (0..height).flat_map(move |y| (0..width).map(move |x| (x, y)))
}

fn check_gaps(c: &Conversion, frame: &[u8], put: &[bool]) {
    let gaps = frame.iter().zip(put).filter(|(_, put)| !**put);
    for (byte, _) in gaps {
        assert_eq!(*byte, UNTOUCHED, "a byte between rows of {c:?}");
    }
}

#[test]
fn frames_of_every_format_are_within_two_levels_of_the_formulas() {
    both(|client| {
        for c in conversions() {
            let (yuv, rgb) = (yuv_frame(&c), noise(c.rgb_bytes().unwrap()));
            let words = c.words(&(0..c.height));
            let (reply, out) = call(client, "yuv_to_rgb", &words, &[&yuv], &[rgb.len()]).unwrap();
            check_decoded(&c, &yuv, &out[0]);
            let rows = u64::from(c.height);
            let row_bytes = u64::from(c.width * c.rgb.pixel_bytes());
            assert_eq!(reply[0], rows * row_bytes);
            // No rows are all rows.
            let words = c.words(&(0..0));
            let (_, out) = call(client, "rgb_to_yuv", &words, &[&rgb], &[yuv.len()]).unwrap();
            check_encoded(&c, &rgb, &out[0]);
        }
    });
}

#[test]
fn rgb_comes_back_from_full_chroma_within_three_levels() {
    both(|client| {
        for matrix in Matrix::ALL {
            for levels in Levels::ALL {
                let c = Conversion {
                    matrix,
                    levels,
                    ..conversion(YuvFormat::I444, (333, 7))
                };
                let words = c.words(&(0..0));
                let rgb = noise(c.rgb_bytes().unwrap());
                let room = [c.yuv_bytes().unwrap()];
                let (_, yuv) = call(client, "rgb_to_yuv", &words, &[&rgb], &room).unwrap();
                let (_, back) =
                    call(client, "yuv_to_rgb", &words, &[&yuv[0]], &[rgb.len()]).unwrap();
                for (before, after) in rgb.iter().zip(&back[0]) {
                    assert!(before.abs_diff(*after) <= 3, "{before} and {after}, {c:?}");
                }
            }
        }
    });
}

#[test]
fn bands_and_batches_give_the_bytes_of_whole_frames() {
    both(|client| {
        for yuv in YuvFormat::ALL {
            let c = Conversion {
                rgb: RgbFormat::Bgra,
                luma_stride: 400,
                ..conversion(yuv, (99, 37))
            };
            let (frame, room) = (yuv_frame(&c), c.rgb_bytes().unwrap());
            let words = c.words(&(0..c.height));
            let (_, whole) = call(client, "yuv_to_rgb", &words, &[&frame], &[room]).unwrap();
            // Over engines, a request for each band of one frame.
            let (to_rgb, to_yuv) = (
                client.kernel("yuv_to_rgb").unwrap(),
                client.kernel("rgb_to_yuv").unwrap(),
            );
            let mut input = client.buffer(frame.len());
            input.bytes_mut().copy_from_slice(&frame);
            let mut output = client.buffer(room);
            let bands: Vec<_> = c.bands(5).collect();
            assert_eq!((bands[0].start, bands[bands.len() - 1].end), (0, c.height));
            let piece = |index: usize| {
                Piece::new(&c.words(&bands[index]))
                    .input(0, 0..frame.len())
                    .output(0, 0..room)
            };
            let spread = client
                .for_each(to_rgb, &[&input], &mut [&mut output], bands.len(), piece)
                .unwrap();
            assert_eq!(spread.replies.len(), bands.len());
            assert_eq!(output.bytes(), whole[0]);
            // And back, into one frame.
            let mut again = client.buffer(frame.len());
            again.bytes_mut().fill(UNTOUCHED);
            let piece = |index: usize| {
                Piece::new(&c.words(&bands[index]))
                    .input(0, 0..room)
                    .output(0, 0..frame.len())
            };
            client
                .for_each(to_yuv, &[&output], &mut [&mut again], bands.len(), piece)
                .unwrap();
            let (_, encoded) =
                call(client, "rgb_to_yuv", &words, &[&whole[0]], &[frame.len()]).unwrap();
            assert_eq!(again.bytes(), encoded[0]);
            batch(client, &c, &frame, &whole[0]);
        }
    });
}

/// Three frames, the middle one in bands, and rows that make no sense between them.
fn batch(client: &sidecore_daemon::client::Client, c: &Conversion, frame: &[u8], whole: &[u8]) {
    let (bytes, room) = (frame.len() as u64, whole.len() as u64);
    let data = frame.repeat(3);
    let mut rows = vec![[0, bytes, 0, room, 0]];
    let bands = c.bands(4).map(|band| rows_word(&band));
    rows.extend(bands.map(|band| [bytes, bytes, room, room, band]));
    let done = rows.len();
    rows.push([2 * bytes, bytes - 1, 2 * room, room, 0]);
    rows.push([2 * bytes, bytes, 2 * room, room - 1, 0]);
    rows.push([2 * bytes + 1, bytes, 2 * room, room, 0]);
    rows.push([2 * bytes, bytes, u64::MAX, 2, 0]);
    rows.push([2 * bytes, bytes, 2 * room, room, rows_word(&(36..38))]);
    rows.push([2 * bytes, bytes, 2 * room, room, u64::MAX]);
    let words = c.batch_words(rows.len() as u64);
    let (reply, outputs) = call(
        client,
        "yuv_to_rgb",
        &words,
        &[&data, &table(rows.as_flattened())],
        &[3 * whole.len(), 16 * rows.len()],
    )
    .unwrap();
    assert_eq!(reply[..2], [rows.len() as u64, 6]);
    let results = results(&outputs[1]);
    assert!(results[..done].iter().all(|it| it.1 == ItemStatus::Done));
    let pixels = u64::from(c.width * c.height * c.rgb.pixel_bytes());
    let put: u64 = results[..done].iter().map(|it| it.0).sum();
    assert_eq!(put, 2 * pixels);
    let failed: Vec<_> = results[done..].iter().map(|it| it.1).collect();
    let bad = ItemStatus::BadRow;
    assert_eq!(failed, [bad, ItemStatus::NoRoom, bad, bad, bad, bad]);
    let (good, rest) = outputs[0].split_at(2 * whole.len());
    assert!(good == whole.repeat(2) && rest.iter().all(|byte| *byte == UNTOUCHED));
}

#[test]
fn a_request_that_makes_no_frame_is_refused() {
    let c = conversion(YuvFormat::Nv12, (10, 6));
    let (frame, room) = (yuv_frame(&c), c.rgb_bytes().unwrap());
    let good = c.words(&(0..6));
    let with = |place: usize, word: u64| {
        let mut words = good;
        words[place] = word;
        words
    };
    let side = |width: u32, height: u32| u64::from(width) | u64::from(height) << 32;
    let formats = good[1];
    let over = FRAME_SIDE_MAX + 1;
    let mut bad = vec![
        with(1, 0),
        with(1, formats & !0xff | 9),
        with(1, formats & !0xff00 | 5 << 8),
        with(1, formats & !0xff_0000 | 4 << 16),
        with(1, formats & !0xff00_0000 | 3 << 24),
        with(1, formats | 1 << 40),
        with(2, 0),
        with(2, side(0, 6)),
        with(2, side(10, 0)),
        with(2, side(over, 6)),
        with(2, side(10, over)),
        with(2, u64::MAX),
        // A frame that the input is too short for.
        with(2, side(11, 6)),
        with(2, side(10, 7)),
        // Strides that are too short, and longer than any input.
        with(3, side(9, 10)),
        with(3, side(10, 9)),
        with(3, side(u32::MAX, 10)),
        with(3, side(10, u32::MAX)),
        with(4, 29),
        with(4, u32::MAX.into()),
        with(4, u64::MAX),
    ];
    // Rows that are not there, and a band that cuts a pair.
    for rows in [
        side(6, 2),
        side(0, 8),
        side(2, u32::MAX),
        side(1, 2),
        side(0, 3),
        side(6, 0),
    ] {
        bad.push(with(5, rows));
    }
    both(|client| {
        for words in &bad {
            let refused = call(client, "yuv_to_rgb", words, &[&frame], &[room]).unwrap_err();
            let text = refused.to_string();
            assert!(text.contains("yuv_to_rgb: "), "{text} for {words:x?}");
        }
        assert!(call(client, "yuv_to_rgb", &good, &[&frame], &[room - 1]).is_err());
        assert!(call(client, "yuv_to_rgb", &good, &[&frame[1..]], &[room]).is_err());
        assert!(call(client, "rgb_to_yuv", &good, &[&frame], &[room]).is_err());
        assert!(call(client, "yuv_to_rgb", &good, &[], &[room]).is_err());
        assert!(call(client, "yuv_to_rgb", &with(0, u64::MAX), &[&frame], &[room]).is_err());
        call(client, "yuv_to_rgb", &good, &[&frame], &[room]).unwrap();
        // One frame again and again is more work than one request may be.
        let c = conversion(YuvFormat::I444, (1024, 64));
        let frame = yuv_frame(&c);
        let (bytes, room) = (frame.len() as u64, c.rgb_bytes().unwrap());
        let items = (REQUEST_BYTES_MAX / (2 * room)) as u64 + 1;
        let rows = [0, bytes, 0, room as u64, 0].repeat(items as usize);
        for (items, is_done) in [(items - 1, true), (items, false)] {
            let rows = table(&rows[..5 * items as usize]);
            let outputs = [room, 16 * items as usize];
            let words = c.batch_words(items);
            let done = call(client, "yuv_to_rgb", &words, &[&frame, &rows], &outputs);
            assert_eq!(done.is_ok(), is_done, "{items} frames");
        }
    });
}

#[test]
fn bands_are_whole_pairs_and_all_rows() {
    for height in [1, 2, 3, 36, 37, 1080] {
        for parts in [0, 1, 2, 5, 600, u32::MAX] {
            let c = conversion(YuvFormat::I420, (2, height));
            let bands: Vec<_> = c.bands(parts).collect();
            assert!(bands.len() <= parts.max(1) as usize, "{parts} of {height}");
            let mut next = 0;
            for band in bands {
                assert!(
                    band.start == next && band.start.is_multiple_of(2) && band.start < band.end
                );
                next = band.end;
            }
            assert_eq!(next, height);
        }
    }
}

/// The numbers of formats in the headers for C and Python are those of requests.
#[test]
fn clients_in_c_and_python_have_the_same_numbers() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../c");
    let read = |path: &str| std::fs::read_to_string(format!("{folder}/{path}")).unwrap();
    let (header, module) = (
        read("include/sidecore.h"),
        read("python/sidecore_offload.py"),
    );
    let mut numbers: Vec<(String, u8)> = Vec::new();
    let mut add = |kind: &str, name: String, number| {
        numbers.push((format!("{kind}_{}", name.to_uppercase()), number));
    };
    for it in YuvFormat::ALL {
        add("YUV", format!("{it:?}"), it as u8);
    }
    for it in RgbFormat::ALL {
        add("RGB", format!("{it:?}"), it as u8);
    }
    for it in Matrix::ALL {
        add("MATRIX", format!("{it:?}"), it as u8);
    }
    for it in Levels::ALL {
        add("LEVELS", format!("{it:?}"), it as u8);
    }
    assert_eq!(numbers.len(), 17);
    for (name, number) in numbers {
        let (c, python) = (
            format!("SIDECORE_{name} = {number}"),
            format!("{name} = {number}"),
        );
        assert!(
            header
                .lines()
                .any(|line| line.trim().trim_end_matches(',') == c),
            "{c}"
        );
        assert!(module.lines().any(|line| line.trim() == python), "{python}");
    }
}
