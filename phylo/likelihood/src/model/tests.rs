//! Names as written by RAxML-NG, and matrices compared with values computed by hand.

use super::*;

fn parse(text: &str) -> Result<ModelName, ModelError> {
    ModelName::parse(text, &mut |_| Err(std::io::ErrorKind::NotFound.into()))
}

fn model(text: &str) -> Model {
    Model::without_alignment(parse(text).unwrap())
}

#[test]
fn names_as_raxml_ng_writes_them() {
    let full = "GTR{1.5/3.8/0.6/1.2/4.0/1.0}+FU{0.27/0.2/0.24/0.29}+IU{0.25}+G4m{0.5}";
    let name = parse(full).unwrap();
    assert_eq!(name.alphabet(), Alphabet::Dna);
    assert!(model(full).fitted().is_empty());
    let printed = model(full).to_string();
    assert_eq!(parse(&printed).unwrap(), name);
    for text in [
        "JC",
        "hky85+F",
        "TPM3uf+FO+I",
        "GTR+G",
        "DNA012345+G8a",
        "TIM2+R3",
        "SYM+IC",
    ] {
        assert_eq!(parse(text).unwrap().alphabet(), Alphabet::Dna, "{text}");
    }
    for text in [
        "LG+G4m{0.5}",
        "wag+F",
        "JTT+FE+I+G",
        "Dayhoff+R5",
        "PROTGTR+FO",
        "LG+F+G16",
    ] {
        assert_eq!(parse(text).unwrap().alphabet(), Alphabet::Protein, "{text}");
    }
}

#[test]
fn names_as_iq_tree_writes_them() {
    for (theirs, ours) in [
        ("TNe", "TN93ef"),
        ("K3Pu+FO", "K81uf"),
        ("TPM2u", "TPM2uf"),
        ("tpm3u", "TPM3uf"),
        ("TIM", "TIM1uf"),
        ("TIMe", "TIM1"),
        ("TIM3e", "TIM3"),
        ("TVMe", "TVMef"),
    ] {
        assert_eq!(parse(theirs).unwrap(), parse(ours).unwrap(), "{theirs}");
    }
    assert_eq!(parse("GTR+ASC").unwrap(), parse("GTR+ASC_LEWIS").unwrap());
    assert!(parse("GTR+ASCII").is_err());
    let counted = |text: &'static str| with_states(text, || Some(5)).into_owned();
    assert_eq!(counted("MK+G+ASC"), "MULTI5_MK+G+ASC");
    assert_eq!(counted("MULTIx_GTR{1/2}"), "MULTI5_GTR{1/2}");
    assert_eq!(with_states("JC+G", || None), "JC+G");
}

#[test]
fn defaults_follow_raxml_ng() {
    assert_eq!(parse("JC").unwrap().frequencies, FrequencyName::Equal);
    assert_eq!(parse("GTR").unwrap().frequencies, FrequencyName::Fitted);
    assert_eq!(parse("LG").unwrap().frequencies, FrequencyName::Matrix);
    let mean = RatesName::Gamma {
        categories: 4,
        alpha: None,
        by: CategoryRate::Mean,
    };
    assert_eq!(parse("GTR+G").unwrap().rates, mean);
    let median = RatesName::Gamma {
        categories: 4,
        alpha: None,
        by: CategoryRate::Median,
    };
    assert_eq!(parse("GTR+GA").unwrap().rates, median);
}

#[test]
fn wrong_names_say_what_is_wrong() {
    let message = |text: &str| parse(text).unwrap_err().to_string();
    assert!(message("GRT+G").contains("`GRT`"));
    assert!(message("GTR{1/2}+G").contains("6 values, 2"));
    assert!(message("GTR+X").contains("`+X`"));
    assert!(message("GTR+G4+R3").contains("twice"));
    assert!(message("GTR+G4{0.001}").contains("0.02 to 1000"));
    assert!(message("GTR+G99").contains("1 to 16"));
    assert!(message("GTR{1/2/3").contains("braces"));
    assert!(message("HKY+FU{0.5/0.5/0.5/0.5}").contains("sum to 1"));
    assert!(message("PROTGTR{/nowhere}").contains("cannot read"));
    for text in [
        "",
        "+",
        "{",
        "GTR+",
        "GTR{}",
        "GTR+FU",
        "GTR+IU",
        "DNAX",
        "DNA013000",
        "LG{1}",
    ] {
        assert!(parse(text).is_err(), "{text}");
    }
}

#[test]
fn a_matrix_from_a_file() {
    let wag = protein::PUBLISHED.iter().find(|one| one.name == "WAG");
    let text = wag.unwrap().text().to_owned();
    let own = ModelName::parse("PROTGTR{own.dat}+G4m{0.7}", &mut |path| {
        assert_eq!(path, "own.dat");
        Ok(text.clone())
    });
    let own = Model::without_alignment(own.unwrap()).process();
    let known = model("WAG+G4m{0.7}").process();
    let (mut a, mut b) = (vec![0.0; 1600], vec![0.0; 1600]);
    own.transitions(0.3, &mut a);
    known.transitions(0.3, &mut b);
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-12));
}

#[test]
fn transition_probabilities_are_probabilities() {
    for text in [
        "JC",
        "GTR{1/9/0.1/2/30/1}+FU{0.4/0.1/0.2/0.3}+I+G4m{0.1}",
        "LG+R3",
        "JTT+G8",
    ] {
        let process = model(text).process();
        let n = process.shape.states;
        let mut matrix = vec![0.0; process.shape.matrix()];
        for length in [0.0, 1e-12, 1e-6, 0.01, 0.5, 10.0, 100.0, 1e6] {
            process.transitions(length, &mut matrix);
            for block in matrix.chunks(n * n) {
                for i in 0..n {
                    let sum: f64 = (0..n).map(|j| block[j * n + i]).sum();
                    assert!((sum - 1.0).abs() < 1e-10, "{text} {length}: {sum}");
                    for j in 0..n {
                        // Reversible: the flow from i to j is that from j to i.
                        let (to, from) = (block[j * n + i], block[i * n + j]);
                        let flow = process.frequencies[i] * to - process.frequencies[j] * from;
                        assert!(flow.abs() < 1e-12, "{text} {length}");
                    }
                }
            }
        }
    }
}

#[test]
fn jukes_and_cantor_by_hand() {
    let process = model("JC").process();
    let mut matrix = vec![0.0; 16];
    for length in [1e-9, 1e-3, 0.1, 1.0, 5.0] {
        process.transitions(length, &mut matrix);
        // Exact to the last digits also where the change is tiny.
        let change = -0.25 * libm::expm1(-4.0 / 3.0 * length);
        assert!((matrix[1] / change - 1.0).abs() < 1e-12, "{length}");
        assert!((matrix[0] - (1.0 - 3.0 * change)).abs() < 1e-14, "{length}");
    }
}

#[test]
fn setting_parameters_keeps_the_model_valid() {
    let mut model = model("GTR+FO+I+R4");
    let fitted = model.fitted();
    assert_eq!(fitted.len(), 1 + 8 + 5 + 4);
    for (k, &parameter) in fitted.iter().enumerate() {
        model.set(parameter, 0.05 + 0.11 * k as f64);
        let process = model.process();
        let mean: f64 = process
            .rates
            .iter()
            .zip(&process.weights)
            .map(|(r, w)| r * w)
            .sum();
        assert!((mean - 1.0).abs() < 1e-9, "{parameter:?}: mean rate {mean}");
        let whole: f64 = process.weights.iter().sum::<f64>() + process.invariant;
        assert!((whole - 1.0).abs() < 1e-12, "{parameter:?}");
        assert!((process.frequencies.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        model.set(parameter, -5.0);
        assert!(model.value(parameter) > 0.0, "{parameter:?}");
    }
}

#[test]
fn data_types_and_scalers_are_raxmls() {
    let parse =
        |text: &str| ModelName::parse(text, &mut |_| Err(std::io::ErrorKind::NotFound.into()));
    assert_eq!(parse("DNA").unwrap(), parse("GTR+FC+G4m").unwrap());
    assert_eq!(parse(" dna ").unwrap(), parse("GTR+F+G").unwrap());
    for (text, hint) in [
        ("PROT", "such as LG+G4"),
        ("AA+G", "LG+G4"),
        ("MULTI5", "MULTI5_MK"),
        ("MULTI65_MK", "2 to 64"),
        ("GT", "GTGTR4"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(text.split('+').next().unwrap()), "{error}");
        assert!(error.contains(hint), "{error}");
    }
    let scaler = |text: &str| parse(text).unwrap().scaler;
    assert_eq!(scaler("GTR+G"), ScalerName::None);
    assert_eq!(scaler("GTR+FC+G4m+B"), ScalerName::Fitted);
    assert_eq!(scaler("JC+BO"), ScalerName::Fitted);
    assert_eq!(scaler("LG+B{0.9}"), ScalerName::Given(0.9));
    assert_eq!(scaler("LG+BU{1.25}+G"), ScalerName::Given(1.25));
    for text in [
        "JC+BU",
        "JC+B{0}",
        "JC+B{x}",
        "JC+B+B{1}",
        "JC+BX",
        "JC+B{1}{2}",
    ] {
        assert!(parse(text).is_err(), "{text}");
    }
}

/// Each name is understood, is of the alphabet that the list says, and is printed so that it is
/// understood again.
#[test]
fn all_names_are_parsed_and_printed() {
    for (name, alphabet, is_mixture) in names() {
        let text = name.replace('x', "7");
        let named = parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(named.exchange.label(), text);
        match alphabet {
            Alphabet::Multistate(_) => assert_eq!(named.alphabet(), Alphabet::Multistate(7)),
            alphabet => assert_eq!(named.alphabet(), alphabet, "{text}"),
        }
        assert_eq!(named.rates.categories() > 1, is_mixture, "{text}");
        let made = model(&text);
        let printed = made.to_string();
        let again = parse(&printed).unwrap_or_else(|error| panic!("{printed}: {error}"));
        assert_eq!(again.exchange.label(), text, "{printed}");
        assert!(model(&printed).fitted().is_empty(), "{printed}");
        assert_eq!(model(&printed).numbers().len(), made.numbers().len());
    }
    assert_eq!(parse("mg94+f1x4").unwrap().exchange.label(), "MG");
    assert_eq!(parse("GTGTR4").unwrap(), parse("gt10").unwrap());
    assert_eq!(parse("q.PFAM_gb").unwrap(), parse("Q.pfam.gb").unwrap());
}

/// The text of a model, whatever its parts and values, is read back as the same process.
#[test]
fn a_printed_model_is_the_same_model() {
    let wag = protein::PUBLISHED.iter().find(|one| one.name == "WAG");
    let wag = wag.unwrap().text();
    let rates: Vec<&str> = wag.split_ascii_whitespace().take(190).collect();
    let shares: Vec<String> = (1..=20)
        .map(|k| format!("{}", f64::from(k) / 210.0))
        .collect();
    let mut names: Vec<String> = names().map(|(name, ..)| name.replace('x', "5")).collect();
    names.extend(protein::all().map(|published| published.name.to_owned()));
    names.extend(protein::STOCK.map(|(name, _)| name.to_owned()));
    for known in names.clone() {
        let parts = ["+FE", "+FO+I+R3", "+F+IU{0.1}+G3a{0.4}"];
        names.extend(parts.map(|part| format!("{known}{part}")));
    }
    names.extend(
        [
            "PROTGTR{wag}+FE+G4",
            "PROTGTR{wag}+FO+R3",
            "PROTGTR{wag}+FC20pi3",
            "PROTGTR+FM",
            "PROTGTR{wag}+C10",
            "MIX{PROTGTR{wag},LG}",
            "MIX{LG:1:0.3,WAG:2:0.7}+FE",
            "MIX{LG:1:0.3,WAG:2:0.7}+FC20pi3+G",
            "MIX{LG+FE:1:0.3,WAG:2:0.7}+F",
            "MIX{JC,GTR{1/2/3/4/5/6}}+FU{0.1/0.2/0.3/0.4}*R2",
            "LG+FMIX{C10pi1:1:0.2,empirical:2:0.8}+R3",
            "GY+F1X4+CODE{2}",
            "MG+F3X4{0.1/0.2/0.3/0.4/0.4/0.3/0.2/0.1/0.3/0.3/0.2/0.2}+G",
            "GTR{1e-7/2e-7/3e-7/4e-7/5e-7/6e-7}+FU{1e-8/0.2/0.3/0.5}",
            "MULTI5_GTR+ASC_STAM{1/2/3/4/5}",
        ]
        .map(str::to_owned),
    );
    names.push(format!("PROTGTR{{{}}}", rates.join("/")));
    names.push(format!(
        "PROTGTR{{{}}}+FU{{{}}}",
        rates.join("/"),
        shares.join("/")
    ));
    let (mut read, mut alone) = (0, 0);
    for text in &names {
        let named = ModelName::parse(text, &mut |_| Ok(wag.to_owned()));
        // Not all parts go with all matrices: MG's frequencies are those of bases.
        let Ok(named) = named else { continue };
        read += 1;
        let mut made = Model::without_alignment(named);
        for (k, parameter) in made.fitted().into_iter().enumerate() {
            // Values that differ, as those of a fit do.
            let value = made.value(parameter) * (0.7 + 0.13 * (k % 5) as f64);
            made.set(parameter, value);
        }
        let printed = made.to_string();
        let again = model(&printed);
        alone += usize::from(again.fitted().is_empty());
        let (made, again) = (made.process(), again.process());
        assert_eq!(made.shape, again.shape, "{text}: {printed}");
        let folded = |process: &Process| {
            let mut all = vec![0.0; process.shape.matrix()];
            process.transitions(0.3, &mut all);
            process.fold(&mut all);
            all
        };
        for (a, b) in folded(&made).iter().zip(folded(&again)) {
            assert!((a - b).abs() < 1e-5, "{text}: {printed}: {a} {b}");
        }
    }
    assert_eq!(alone, read, "all values are in the text");
    assert!(read > 300, "{read}");
}

/// Every published matrix is whole: 190 rates, 20 frequencies that sum to 1 but for rounding.
#[test]
fn published_matrices_are_whole() {
    let mixed = protein::MIXTURES
        .iter()
        .flat_map(|mixture| &mixture.classes);
    let mut count = 0;
    for published in protein::all().chain(mixed) {
        let lines = published.text().lines().filter(|line| !line.is_empty());
        let words = |line: &str| line.split_ascii_whitespace().count();
        let rows: Vec<usize> = lines.take(21).map(words).collect();
        let triangle: Vec<usize> = (1..20).collect();
        assert_eq!(rows[..19], triangle, "{}", published.name);
        assert_eq!(rows[19..], [10, 10], "{}", published.name);
        let numbers = published.text().split_ascii_whitespace().take(210);
        assert!(
            numbers.clone().all(|word| word.parse::<f64>().is_ok()),
            "{}",
            published.name
        );
        let matrix = published.matrix();
        let sum: f64 = matrix.frequencies.iter().sum();
        assert!((sum - 1.0).abs() < 5e-6, "{}: {sum}", published.name);
        assert!(
            matrix.frequencies.iter().all(|share| *share > 0.0),
            "{}",
            published.name
        );
        assert!(
            matrix.exchange.iter().all(|rate| *rate >= 0.0),
            "{}",
            published.name
        );
        count += 1;
    }
    assert_eq!(count, 60);
    let classes = protein::PROFILES.iter().map(|own| own.rows().len());
    let classes: Vec<usize> = classes.collect();
    assert_eq!(classes, [10, 20, 30, 40, 50, 60, 4]);
}

/// Classes, weights and frequencies of mixtures as IQ-TREE reads them.
#[test]
fn mixtures_are_parsed_and_printed() {
    let classes = |text: &str| parse(text).unwrap().exchange.mixture_size();
    assert_eq!(classes("LG+C20+F+G"), 21);
    assert_eq!(classes("c60"), 60);
    assert_eq!(classes("MIX{LG+F,WAG,JTT}*R3"), 3);
    assert_eq!(classes("EX_EHO+R4"), 6);
    assert_eq!(classes("MIX{LG,WAG}+C10"), 20);
    assert_eq!(classes("MIX{LG}"), 1);
    for (text, fits, shape) in [
        ("LG+C20+G", false, 80),
        ("C10", false, 40),
        ("LG+C20+F+G", true, 84),
        ("EX2+G", true, 8),
        ("MIX{LG,WAG:1:0.2}", false, 2),
        ("MIX{LG,WAG}*R2", false, 2),
        ("LG+FMIX{C10pi1,C10pi2}+R3", true, 6),
        ("LG+CF4+F+I+G", true, 20),
    ] {
        let made = model(text);
        let weights = |one: &Parameter| matches!(one, Parameter::ClassWeight(_));
        assert_eq!(made.fitted().iter().any(weights), fits, "{text}");
        let process = made.process();
        assert_eq!(process.shape.rates, shape, "{text}");
        let rates = process.rates.iter().zip(&process.weights);
        let mean: f64 = rates.map(|(rate, weight)| rate * weight).sum();
        assert!((mean - 1.0).abs() < 1e-12, "{text}: mean rate {mean}");
        let printed = made.to_string();
        let again = model(&printed);
        assert!(again.fitted().is_empty(), "{printed}");
        assert_eq!(again.numbers().len(), made.numbers().len(), "{printed}");
        let pairs = again.process().weights.into_iter().zip(process.weights);
        for (a, b) in pairs {
            assert!((a - b).abs() < 1e-6, "{printed}: {a} {b}");
        }
    }
    assert_eq!(model("LG+C60+G4m{1}").to_string(), "LG+C60+G4m{1.000000}");
}

#[test]
fn wrong_mixtures_say_what_is_wrong() {
    for (text, what) in [
        ("MIX{LG", "braces"),
        ("MIX{LG}}", "braces"),
        ("MIX{LG,}", "no model"),
        ("MIX{LG:1:0}", "above 0"),
        ("MIX{LG:0:1}", "above 0"),
        ("MIX{LG:1:2:3}", "a class takes 3"),
        ("MIX{LG:x}", "`x`"),
        ("MIX{LG,HKY}", "one alphabet"),
        ("MIX{GY,GY}", "codon"),
        ("MIX{LG+G,WAG}", "rates across sites"),
        ("MIX{LG4X,WAG}", "rates across sites"),
        ("MIX{MIX{LG},WAG}", "`MIX`"),
        ("MIX{EX2,WAG}", "EX2"),
        ("MIX{C10,WAG}", "C10"),
        ("LG+C70", "+C70"),
        ("LG+FC20pi21", "+FC20pi21"),
        ("LG+C20+C10", "twice"),
        ("LG+C20+FE", "only +F and +FO"),
        ("HKY+C20", "amino acids"),
        ("MIX{JC,HKY}+C10", "amino acids"),
        ("LG4X+C10", "amino acids"),
        ("LG+C60+R8", "at most 256"),
        ("LG*G4", "star"),
        ("MIX{LG,WAG}*R3", "2 values, 3"),
        ("MIX{LG:2,WAG}*R2", "star"),
        ("LG+FMIX{nothing}", "+nothing"),
        ("LG*F", "+F"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(what), "{text}: {error}");
    }
}

/// A class of weight 0 is as if it were not there.
#[test]
fn a_class_of_weight_zero_adds_nothing() {
    let [one, two] = ["MIX{LG:1:1,WAG:1:0}+G", "LG+G"].map(|text| model(text).process());
    assert!(one.weights[4..].iter().all(|weight| *weight == 0.0));
    assert_eq!(one.rates[..4], two.rates);
    let (mut a, mut b) = (vec![0.0; 3200], vec![0.0; 1600]);
    one.transitions(0.3, &mut a);
    two.transitions(0.3, &mut b);
    assert_eq!(a[..1600], b);
}

/// Which exchange of bases leads from one genotype to another.
#[test]
fn genotypes_change_base_by_base() {
    let classes = |text: &str| match parse(text).unwrap().exchange {
        ExchangeName::Classes { classes, .. } => classes,
        other => panic!("{other:?}"),
    };
    let unphased = classes("GT10");
    // From AA: to CC GG TT two bases at once; to AC AG AT one; to CG CT GT two.
    assert_eq!(unphased[..9], [0, 0, 0, 1, 2, 3, 0, 0, 0]);
    // The last: CT to GT is C to G.
    assert_eq!(unphased[44], 4);
    let phased = classes("GT16");
    assert_eq!(phased[..15], [0, 0, 0, 1, 2, 3, 0, 0, 0, 1, 2, 3, 0, 0, 0]);
    // AC to CA changes both bases when the phase is known.
    let at = |i: usize, j: usize| 15 * i - i * i.saturating_sub(1) / 2 + j - i - 1;
    assert_eq!(phased[at(4, 10)], 0);
    assert_eq!(phased[119], 4, "TC to TG is C to G");
}

/// Single entries of the published tables, which begin with TTT, TTC, TTA and end with GGG.
#[test]
fn codon_matrices_are_as_published() {
    let codons = GeneticCode::STANDARD.codons();
    let state = |text: &str| {
        let letters = |codon: &[u8; 3]| codon.map(|base| b"ACGT"[usize::from(base)]);
        let mut each = codons.iter().map(letters);
        each.position(|own| own == text.as_bytes()).unwrap()
    };
    for (name, rates, share) in [
        ("KOSI07", [16.011531, 2.395822, 25.64086], 0.021414),
        ("ECMREST", [11.192024, 1.31561, 19.084271], 0.022103),
        ("SCHN05", [15594.0, 787.0, 21307.0], 0.019065),
    ] {
        let parsed = parse(name).unwrap();
        let kind = CodonKind::NAMES.iter().find(|(own, _)| *own == name);
        let (kind, n) = (kind.unwrap().1, 61);
        let exchange = kind.exchange(GeneticCode::STANDARD, &[], &[]);
        assert_eq!(exchange.len(), n * (n - 1) / 2);
        let pairs = [["TTT", "TTC"], ["TTT", "TTA"], ["GGG", "GGA"]];
        for ([a, b], rate) in pairs.into_iter().zip(rates) {
            let [a, b] = [state(a).min(state(b)), state(a).max(state(b))];
            let found = exchange[a * (2 * n - 1 - a) / 2 + b - a - 1];
            assert!((found - rate).abs() < 1e-9, "{name}: {found}");
        }
        let frequencies = parsed.exchange.frequencies(n);
        let sum: f64 = frequencies.iter().sum();
        assert!((frequencies[state("TTT")] - share).abs() < 1e-9, "{name}");
        assert!((sum - 1.0).abs() < 1e-3, "{name}: {sum}");
        assert!(frequencies.iter().all(|own| *own > 0.004), "{name}");
    }
    for (text, what) in [
        ("KOSI07+CODE{2}", "standard genetic code"),
        ("KOSI07{0.2}", "values"),
        ("NQ.bird+G", "rooted trees"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(what), "{text}: {error}");
    }
    assert!(model("ecm").fitted().is_empty());
    assert_eq!(model("SCHN05").to_string(), "SCHN05");
    assert_eq!(parse("ECMK07").unwrap(), parse("KOSI07+CODE{1}").unwrap());
}

#[test]
fn genetic_codes_are_parts_of_codon_models() {
    let parse =
        |text: &str| ModelName::parse(text, &mut |_| Err(std::io::ErrorKind::NotFound.into()));
    let name = parse("GY{0.2/2}+FU{FILE}+CODE{2}");
    // The file is looked for, so the code was understood.
    assert!(name.unwrap_err().to_string().contains("FILE"));
    let name = parse("gy+f3x4+code{2}").unwrap();
    assert_eq!(name.alphabet().states(), 60);
    let printed = Model::without_alignment(name).to_string();
    assert!(printed.contains("+CODE{2}"), "{printed}");
    assert_eq!(parse(&printed).unwrap().alphabet().states(), 60);
    assert!(
        !Model::without_alignment(parse("GY").unwrap())
            .to_string()
            .contains("CODE")
    );
    for (text, what) in [
        ("GY+CODE{7}", "`7` is not a genetic code"),
        ("GY+CODE{2}+CODE{3}", "+CODE"),
        ("GY+CODE", "+CODE"),
        ("LG+CODE{2}", "CODE{2}"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(what), "{text}: {error}");
    }
}
