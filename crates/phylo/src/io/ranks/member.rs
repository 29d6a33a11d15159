//! The side of all other ranks: workers whose coordinator is elsewhere.

use super::wire::{Downward, LINE_MAX, Upward, read, write};
use super::{BEAT, SILENCE};
use crate::analysis::workers::{Event, Job, Order, Workers};
use sidecore_offload::{OffloadError, Pool};
use std::io::BufReader;
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Errors that end a member's work early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemberError {
    /// Nobody is there.
    #[error("cannot reach rank 0 at {address}: {source}; is a firewall between the machines?")]
    Connect {
        /// Where.
        address: String,
        /// The cause.
        source: std::io::Error,
    },
    /// Rank 0 does not want it.
    #[error("rank 0 refused rank {rank}: {why}")]
    Refused {
        /// Which.
        rank: u32,
        /// Why.
        why: String,
    },
    /// Rank 0 is gone.
    #[error("rank 0 is gone; what it received is in its checkpoint: start the job again to go on")]
    Gone,
    /// This process's engines.
    #[error(transparent)]
    Offload(#[from] OffloadError),
}

/// A rank that works for a run led by rank 0.
#[derive(Debug, Clone)]
pub struct Member {
    /// Rank 0's host and port.
    pub address: String,
    /// The token that rank 0 lets in.
    pub token: String,
    /// Own number, not 0.
    pub rank: u32,
    /// The run's identity.
    pub run: String,
}

impl Member {
    /// Works until rank 0 says that all is done. Blocks.
    ///
    /// # Errors
    /// [`MemberError`].
    pub fn work(
        &self,
        pool: &Pool,
        cpus: &[usize],
        job: &dyn Job,
        save_every: Duration,
    ) -> Result<(), MemberError> {
        let stream = self.connect().map_err(|source| MemberError::Connect {
            address: self.address.clone(),
            source,
        })?;
        let (sender, lines) = channel();
        let gone = |_| MemberError::Gone;
        let mut writer = stream.try_clone().map_err(gone)?;
        let hello = Upward::Hello {
            token: self.token.clone(),
            rank: self.rank,
            run: self.run.clone(),
        };
        write(&mut writer, &hello).map_err(gone)?;
        let mut reader = BufReader::new(stream.try_clone().map_err(gone)?);
        let writing = std::thread::spawn(move || send_all(&mut writer, &lines));
        let tell = |event: Event| {
            // The writer ends when the connection does, which the reader sees.
            let _ = sender.send(Upward::Event(event));
        };
        let result = Workers::run(pool, cpus, job, save_every, &tell, |workers| {
            loop {
                match read(&mut reader, LINE_MAX) {
                    Ok(Some(Downward::Order(Order::Close))) => return Ok(()),
                    Ok(Some(Downward::Order(order))) => workers.deliver(order),
                    Ok(Some(Downward::Refused(why))) => {
                        let rank = self.rank;
                        return Err(MemberError::Refused { rank, why });
                    }
                    Ok(None) | Err(_) => return Err(MemberError::Gone),
                }
            }
        });
        // Ends the writer, too.
        let _ = stream.shutdown(Shutdown::Both);
        drop(sender);
        let _ = writing.join();
        result?
    }

    /// Rank 0 may not be listening yet.
    fn connect(&self) -> std::io::Result<TcpStream> {
        let began = Instant::now();
        loop {
            match TcpStream::connect(&self.address) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_write_timeout(Some(SILENCE))?;
                    return Ok(stream);
                }
                Err(error) if began.elapsed() >= CONNECT_FOR => return Err(error),
                Err(_) => std::thread::sleep(CONNECT_EVERY),
            }
        }
    }
}

/// Writes lines until there can be no more, and a beat where there are none.
fn send_all(stream: &mut TcpStream, lines: &Receiver<Upward>) {
    loop {
        let line = match lines.recv_timeout(BEAT) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => Upward::Beat,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if write(stream, &line).is_err() {
            return;
        }
    }
}

const CONNECT_FOR: Duration = Duration::from_secs(20);
const CONNECT_EVERY: Duration = Duration::from_millis(100);
