//! Other processes that work for a run: each with workers of its own, over TCP.
//!
//! ```text
//!   rank 0: coordinator ── Links::deliver ──► line of JSON ──► reader ── Workers::deliver  rank n
//!           mailbox ◄── reader thread ◄── line of JSON ◄── writer ◄── tell, every beat
//! ```
//!
//! Why not messages of MPI: an MPI job whose member dies is over, or at best has calls that fail
//! for ever after. A connection that ends says which rank is gone and nothing else; the coordinator
//! hands its pieces to others, from their last saved states. MPI starts the processes, numbers them
//! and tells them where rank 0 is (`mpi.rs`).
//!
//! Must stay true: nobody who does not know the run's token is listened to; whoever is silent for
//! half a minute is gone; a rank reads the same alignment and options as rank 0, or is refused.

mod leader;
mod member;
mod wire;

pub use leader::{Leader, Links};
pub use member::{Member, MemberError};

use std::time::Duration;

/// Time after which a silent rank counts as gone.
const SILENCE: Duration = Duration::from_secs(30);
/// A member says that it is there.
const BEAT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
