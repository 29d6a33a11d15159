//! Lent memory is kept in the state, beyond the job.
use sidecore_engine::*;

struct Broken;

impl Kernel for Broken {
    type Args<'j> = (In<'j, u32>, Out<'j, u32>);
    type Out = u32;
    type State = Option<In<'static, u32>>;

    fn run<'c, 'j: 'c>(
        cx: &mut Ctx<'c, Self>,
        (source, target): Self::Args<'j>,
    ) -> Result<u32, KernelError> {
        *cx.state = Some(source);
        drop(target);
        Ok(0)
    }
}

fn main() {}
