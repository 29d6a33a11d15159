//! quick
use sidecore_block::codec::{Inflater, lzo1x::Inflate};
fn main(){ let a:Vec<String>=std::env::args().collect(); let d=std::fs::read(&a[1]).unwrap(); let reps:usize=a[2].parse().unwrap();
let mut v=vec![];let mut p=0; while p<d.len(){let r=u32::from_le_bytes(d[p..p+4].try_into().unwrap()) as usize;let l=u32::from_le_bytes(d[p+4..p+8].try_into().unwrap()) as usize;v.push((r,&d[p+8..p+8+l]));p+=8+l;}
let mut out=vec![0u8;65536*4];let mut best=f64::MAX;let mut inf=Inflate::new();
for _ in 0..reps{let t=std::time::Instant::now();for &(r,s) in &v{inf.inflate(s,&mut out[..r]).unwrap();}best=best.min(t.elapsed().as_secs_f64());}
use std::io::Write; writeln!(std::io::stdout(),"{best:.9}").unwrap();
if a.len()>3 {let raw=std::fs::read(&a[3]).unwrap();let mut q=0;for &(r,s) in &v{inf.inflate(s,&mut out[..r]).unwrap();assert_eq!(&out[..r],&raw[q..q+r]);q+=r;}}
}
