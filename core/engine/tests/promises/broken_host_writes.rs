//! The host changes memory that a job has on loan.
use sidecore_engine::*;

struct Sum;

impl Kernel for Sum {
    type Args<'j> = In<'j, u32>;
    type Out = u32;
    type State = ();

    fn run<'c, 'j: 'c>(cx: &mut Ctx<'c, Self>, values: In<'j, u32>) -> Result<u32, KernelError> {
        Ok(cx.mfc.fetch(values)?.iter().sum())
    }
}

fn main() {
    let engine = Engine::start(EngineOptions::default()).unwrap();
    let mut values = vec![1, 2, 3];
    engine.scope(|scope| {
        // The missing join does not matter: the job may run until the scope ends.
        drop(scope.spawn::<Sum>(In::new(&values)));
        values[0] = 2;
    });
}
