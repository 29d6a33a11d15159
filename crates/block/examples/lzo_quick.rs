//! quick
use sidecore_block::codec::{
    Deflater, Inflater,
    lzo1x::{Deflate, Inflate},
};
use std::io::Write;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let raw = std::fs::read(&a[1]).unwrap();
    for level in a[2].split(',').map(|l| l.parse::<u8>().unwrap()) {
        let (mut d, mut i) = (Deflate::new(level), Inflate::new());
        let t = std::time::Instant::now();
        let mut all = vec![];
        let mut total = 0;
        let mut out = vec![];
        for b in raw.chunks(65536) {
            d.deflate(b, &mut out).unwrap();
            total += out.len();
            all.extend((b.len() as u32).to_le_bytes());
            all.extend((out.len() as u32).to_le_bytes());
            all.extend(&out);
        }
        let el = t.elapsed().as_secs_f64();
        let mut p = 0;
        let mut buf = vec![0; 65536];
        for b in raw.chunks(65536) {
            let l = u32::from_le_bytes(all[p + 4..p + 8].try_into().unwrap()) as usize;
            i.inflate(&all[p + 8..p + 8 + l], &mut buf[..b.len()])
                .unwrap();
            assert_eq!(&buf[..b.len()], b);
            p += 8 + l;
        }
        writeln!(
            std::io::stdout(),
            "level {level}: {total} bytes ratio {:.4} {:.1} MB/s",
            raw.len() as f64 / total as f64,
            raw.len() as f64 / el / 1e6
        )
        .unwrap();
        std::fs::write(format!("/tmp/lzo-eng/our{level}.lzo"), &all).unwrap();
    }
}
