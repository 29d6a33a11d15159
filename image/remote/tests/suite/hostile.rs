//! Malicious or broken servers: right bytes or an error of one line, in bounded time and memory.

use crate::common::{device, eager, options, packed};
use sidecore_block::format::Format;
use sidecore_block::source::BlockSource;
use sidecore_random::Random;
use sidecore_remote::{Location, Options, RemoteImage, Retry};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Answers the request for a range on a connection, which is closed afterwards.
type Answer = dyn Fn(Range<u64>, &mut TcpStream) -> std::io::Result<()> + Send + Sync;

/// A server each of whose connections takes one request.
struct Rude {
    address: std::net::SocketAddr,
    requests: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
}

impl Rude {
    fn start(size: u64, answer: Box<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            requests: Arc::default(),
            ended: Arc::default(),
        };
        let (requests, ended) = (Arc::clone(&server.requests), Arc::clone(&server.ended));
        let answer: Arc<Answer> = answer.into();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                let (requests, answer) = (Arc::clone(&requests), Arc::clone(&answer));
                std::thread::spawn(move || {
                    let mut stream = stream;
                    let Some(range) = range_of(&stream, size) else {
                        return;
                    };
                    requests.fetch_add(1, Ordering::SeqCst);
                    let _ = answer(range, &mut stream);
                });
            }
        });
        server
    }

    fn open(&self, options: Options) -> Result<Arc<RemoteImage>, String> {
        let url = format!("http://{}/image", self.address);
        let location = Location::parse(&url).unwrap().unwrap();
        RemoteImage::open(&location, options).map_err(|error| error.to_string())
    }

    fn refused(&self) -> String {
        self.open(options()).err().expect("it should be refused")
    }
}

impl Drop for Rude {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

/// The range that the one request on `stream` asks for.
fn range_of(stream: &TcpStream, size: u64) -> Option<Range<u64>> {
    let mut range = None;
    for line in BufReader::new(stream).lines() {
        let line = line.ok()?.to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(text) = line.strip_prefix("range: bytes=") {
            let (first, last) = text.split_once('-')?;
            range = Some(match first.is_empty() {
                true => size.saturating_sub(last.parse().ok()?)..size,
                false => first.parse().ok()?..size.min(last.parse::<u64>().ok()? + 1),
            });
        }
    }
    range
}

fn head(range: &Range<u64>, size: u64, others: &str) -> String {
    let Range { start, end } = range;
    let last = end - 1;
    format!(
        "HTTP/1.1 206 x\r\nconnection: close\r\ncontent-range: bytes {start}-{last}/{size}\r\n\
         {others}\r\n"
    )
}

fn length(range: &Range<u64>) -> String {
    format!("content-length: {}\r\n", range.end - range.start)
}

fn part(image: &[u8], range: &Range<u64>) -> Vec<u8> {
    image[range.start as usize..range.end as usize].to_vec()
}

/// A server of this image that sends no validators, and may send its bodies in chunks.
fn of_image(image: &[u8], chunked: bool) -> Rude {
    let (size, image) = (image.len() as u64, image.to_vec());
    Rude::start(
        size,
        Box::new(move |range, stream| {
            let body = part(&image, &range);
            if !chunked {
                stream.write_all(head(&range, size, &length(&range)).as_bytes())?;
                return stream.write_all(&body);
            }
            let others = "transfer-encoding: chunked\r\n";
            stream.write_all(head(&range, size, others).as_bytes())?;
            for chunk in body.chunks(1000) {
                write!(stream, "{:x}\r\n", chunk.len())?;
                stream.write_all(chunk)?;
                stream.write_all(b"\r\n")?;
            }
            stream.write_all(b"0\r\n\r\n")
        }),
    )
}

#[test]
fn chunks_and_missing_validators_are_taken() {
    let (raw, image) = packed(2 << 20, Format::Zstd, 64 << 10);
    for chunked in [false, true] {
        let server = of_image(&image, chunked);
        let device = device(&server.open(options()).unwrap());
        let mut found = vec![0; raw.len()];
        device.read_into(0, &mut found).unwrap();
        assert!(found == raw, "chunked {chunked}");
    }
}

#[test]
fn a_body_without_an_end_is_given_up() {
    let (_, image) = packed(1 << 20, Format::Zstd, 64 << 10);
    let size = image.len() as u64;
    let server = Rude::start(
        size,
        Box::new(move |range, stream| {
            let others = "transfer-encoding: chunked\r\n";
            stream.write_all(head(&range, size, others).as_bytes())?;
            loop {
                stream.write_all(b"1000\r\n")?;
                stream.write_all(&[7; 0x1000])?;
                stream.write_all(b"\r\n")?;
            }
        }),
    );
    assert!(server.refused().contains("goes on after"));
}

#[test]
fn a_server_that_drips_is_given_up() {
    let size = 4000;
    let server = Rude::start(
        size,
        Box::new(move |range, stream| {
            stream.write_all(head(&range, size, &length(&range)).as_bytes())?;
            for _ in range {
                stream.write_all(b"x")?;
                std::thread::sleep(Duration::from_millis(30));
            }
            Ok(())
        }),
    );
    let begun = Instant::now();
    let patience = Options {
        retry: Retry {
            attempts: 2,
            // Longer than any of its pauses.
            attempt_max: Duration::from_secs(1),
            ..eager()
        },
        ..options()
    };
    let error = server.open(patience).err().unwrap();
    assert!(error.contains("too slowly"), "{error}");
    // The whole body would take two minutes.
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn what_is_compressed_on_the_way_is_refused() {
    let size = 100_000;
    let server = Rude::start(
        size,
        Box::new(move |range, stream| {
            let others = "content-encoding: gzip\r\ncontent-length: 3\r\n";
            stream.write_all(head(&range, size, others).as_bytes())?;
            stream.write_all(b"\x1f\x8b\x08")
        }),
    );
    assert!(server.refused().contains("compresses what it sends"));
    assert!(server.requests.load(Ordering::SeqCst) <= 3, "tried again");
}

#[test]
fn redirects_that_lead_nowhere_end() {
    for (target, expected) in [
        ("/again", "redirected to"),
        ("file:///etc/passwd", "leads from http to file"),
        ("http://[", "names no place"),
        ("", "names no place"),
    ] {
        let line = match target {
            "" => String::new(),
            target => format!("location: {target}\r\n"),
        };
        let server = Rude::start(
            10,
            Box::new(move |_, stream| {
                write!(
                    stream,
                    "HTTP/1.1 302 x\r\nconnection: close\r\n{line}content-length: 0\r\n\r\n"
                )
            }),
        );
        let error = server.refused();
        assert!(error.contains(expected), "{target}: {error}");
        assert!(server.requests.load(Ordering::SeqCst) < 20, "{target}");
    }
}

#[test]
fn ranges_that_mean_nothing_are_refused() {
    let wild = [
        "",
        "content-range: bytes 0-9/*\r\n",
        "content-range: bytes 9-0/100\r\n",
        "content-range: bytes 0-99/18446744073709551616\r\n",
        "content-range: bytes 0-18446744073709551615/18446744073709551615\r\n",
        "content-range: items 0-9/100\r\n",
        "content-type: multipart/byteranges; boundary=x\r\n",
    ];
    for others in wild {
        let server = Rude::start(
            100,
            Box::new(move |_, stream| {
                write!(
                    stream,
                    "HTTP/1.1 206 x\r\nconnection: close\r\n{others}content-length: 10\r\n\r\n\
                     0123456789"
                )
            }),
        );
        let error = server.refused();
        assert!(
            error.contains("which range") || error.contains("instead of those"),
            "{others}: {error}"
        );
    }
}

/// An image that claims the largest possible size: its tables are searched at its end, and nothing
/// is allocated in proportion to its claim.
#[test]
fn a_size_beyond_all_bounds_takes_no_memory() {
    let size = u64::MAX - 1;
    let server = Rude::start(
        size,
        Box::new(move |range, stream| {
            stream.write_all(head(&range, size, &length(&range)).as_bytes())?;
            for _ in range.step_by(4096) {
                stream.write_all(&[0x5a; 4096])?;
            }
            Ok(())
        }),
    );
    let remote = server.open(options()).unwrap();
    let image = sidecore_block::image::Image::Remote(remote as _);
    // It matches no format, and so counts as one without tables.
    let index = image.index(false).unwrap();
    assert_eq!(
        (index.raw_bytes(), index.memory_bytes() < 1 << 20),
        (size, true)
    );
}

/// However a server's answers are damaged (status lines, headers, chunks, lengths), opening an
/// image ends soon, with the image or with an error of one line.
#[test]
fn damaged_answers_end_in_the_image_or_in_one_line() {
    let (_, image) = packed(300_000, Format::Zstd, 64 << 10);
    let size = image.len() as u64;
    let served = Arc::new(image);
    let (mut opened, mut refused) = (0, 0);
    for seed in 0..120_u64 {
        let image = Arc::clone(&served);
        let server = Rude::start(
            size,
            Box::new(move |range, stream| {
                let mut random = Random::new(seed ^ range.start << 8);
                let mut answer = match random.below(2) {
                    0 => head(&range, size, &length(&range)).into_bytes(),
                    _ => head(&range, size, "transfer-encoding: chunked\r\n").into_bytes(),
                };
                if answer.ends_with(b"chunked\r\n\r\n") {
                    answer.extend(format!("{:x}\r\n", range.end - range.start).bytes());
                }
                let head_bytes = answer.len() as u64;
                answer.extend(part(&image, &range));
                if answer.windows(7).any(|it| it == b"chunked") {
                    answer.extend(b"\r\n0\r\n\r\n");
                }
                for _ in 0..random.below(4) {
                    let at = random.below(head_bytes.min(answer.len() as u64)) as usize;
                    match random.below(5) {
                        0 => answer[at] = random.bits() as u8,
                        1 => answer.insert(at, b"\r\n:0 \x1b9-,f"[random.below(10) as usize]),
                        2 => drop(answer.remove(at)),
                        3 => answer.truncate(at),
                        _ => {
                            let early = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n";
                            answer.splice(0..0, early.repeat(3));
                        }
                    }
                    if answer.is_empty() {
                        break;
                    }
                }
                stream.write_all(&answer)
            }),
        );
        let begun = Instant::now();
        let impatient = Options {
            retry: Retry {
                attempts: 2,
                attempt_max: Duration::from_secs(2),
                ..eager()
            },
            ..options()
        };
        match server.open(impatient) {
            Ok(_) => opened += 1,
            Err(error) => {
                assert!(
                    !error.is_empty() && !error.contains("panicked"),
                    "{seed}: {error}"
                );
                refused += 1;
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "seed {seed}");
    }
    assert!(
        opened > 5 && refused > 5,
        "{opened} opened, {refused} refused"
    );
}
