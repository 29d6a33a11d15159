use super::*;
use crate::random::Random;
use crate::runner::Serial;

/// Site log-likelihoods of trees that differ from the first by noise and by `behind` in all.
fn table(behind: &[f64], seed: u64) -> SiteTable {
    let mut random = Random::new(seed);
    let sites = 400;
    let mut columns: Vec<Vec<f64>> = vec![Vec::new(); behind.len()];
    for _ in 0..sites {
        let base = -2.0 - 3.0 * random.unit();
        for (tree, behind) in behind.iter().enumerate() {
            let noise = if tree == 0 { 0.0 } else { random.unit() - 0.5 };
            columns[tree].push(base + 0.5 * noise - behind / f64::from(sites));
        }
    }
    SiteTable::new(&columns).unwrap()
}

fn quick(table: &SiteTable, seed: u64) -> Vec<Verdict> {
    let options = Options {
        replicates: 2_000,
        seed,
    };
    compare(table, &options, &Serial, |_, _| {}).unwrap()
}

#[test]
fn verdicts_are_ordered_as_they_should_be() {
    let found = quick(&table(&[0.0, 8.0, 14.0, 40.0], 3), 1);
    assert!(found.iter().map(|v| v.bp_rell).sum::<f64>() > 1.0 - 1e-9);
    assert!((found.iter().map(|v| v.c_elw).sum::<f64>() - 1.0).abs() < 1e-9);
    for verdict in &found {
        // SH is the most careful, and AU lies between it and the plain proportion.
        assert!(verdict.p_sh >= verdict.p_kh - 1e-9, "{verdict:?}");
        assert!(verdict.p_wsh >= verdict.p_wkh - 1e-9, "{verdict:?}");
    }
    let last = &found[3];
    assert!(
        last.p_au < 0.001 && last.p_sh < 0.01 && last.c_elw < 0.01,
        "{last:?}"
    );
    assert!(found[0].p_au > 0.5, "{found:?}");
    assert_eq!(found[0].delta, 0.0);
}

#[test]
fn one_seed_one_result() {
    let table = table(&[0.0, 1.0, 3.0], 5);
    assert_eq!(quick(&table, 7), quick(&table, 7));
    let [a, b] = [quick(&table, 7), quick(&table, 8)];
    assert_ne!(a, b);
    for (a, b) in a.iter().zip(&b) {
        assert!((a.p_au - b.p_au).abs() < 0.12, "{a:?} {b:?}");
    }
}

/// For two trees the border is flat: the AU test is the one-sided test of the difference's mean.
#[test]
fn two_trees_are_a_normal_test() {
    let table = table(&[0.0, 4.0], 11);
    let options = Options {
        replicates: 10_000,
        seed: 1,
    };
    let found = compare(&table, &options, &Serial, |_, _| {}).unwrap();
    let weights = table.difference_weights();
    let z = (found[0].lnl - found[1].lnl) * weights[1];
    let (better, worse) = if z > 0.0 { (0, 1) } else { (1, 0) };
    let expected = normal::below(-z.abs());
    for p in [found[worse].p_au, found[worse].p_kh, found[worse].bp_rell] {
        assert!((p - expected).abs() < 0.03, "{p} {expected}");
    }
    assert!((found[better].p_au - (1.0 - expected)).abs() < 0.03);
}

/// Proportions that follow the theory exactly give back its p-value.
#[test]
fn distance_and_curvature_are_found_again() {
    for (d, c) in [(1.0, 0.3), (2.0, 0.5), (-0.5, 0.2)] {
        let count = 20_000;
        // Gaps whose share below 0 is what distance and curvature make it.
        let gaps: Vec<Vec<f32>> = unbiased::SCALES
            .into_iter()
            .map(|r: f64| {
                let z = d * r.sqrt() + c / r.sqrt();
                let quantile = |k: usize| normal::quantile((k as f64 + 0.5) / f64::from(count));
                (0..count as usize)
                    .map(|k| (quantile(k) + z) as f32)
                    .collect()
            })
            .collect();
        let gaps: Vec<&[f32]> = gaps.iter().map(Vec::as_slice).collect();
        let p = unbiased::p_value(&gaps);
        assert!((p - normal::below(c - d)).abs() < 2e-3, "{d} {c}: {p}");
    }
}

#[test]
fn what_cannot_be_compared_is_refused() {
    assert!(matches!(
        SiteTable::new(&[vec![1.0]]),
        Err(TopologyError::TooFew { trees: 1 })
    ));
    let error = SiteTable::new(&[vec![1.0, 2.0], vec![1.0]]).unwrap_err();
    assert_eq!(error.to_string(), "tree 2 has 1 sites, the first one has 2");
    let error = SiteTable::new(&[vec![1.0], vec![f64::NAN]]).unwrap_err();
    assert!(matches!(
        error,
        TopologyError::Value {
            tree: 2,
            site: 1,
            ..
        }
    ));
    let equal = SiteTable::new(&[vec![-1.0; 30], vec![-1.0; 30]]).unwrap();
    let found = quick(&equal, 1);
    assert!((found[0].bp_rell - 0.5).abs() < 1e-9);
    assert!(found.iter().all(|verdict| verdict.p_au.is_finite()));
    let options = Options {
        replicates: 10_000_001,
        seed: 1,
    };
    assert!(compare(&equal, &options, &Serial, |_, _| {}).is_err());
}
