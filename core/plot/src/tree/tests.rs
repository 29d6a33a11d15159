use super::*;

fn node(parent: Option<usize>, label: &str, length: f64) -> TreeNode {
    TreeNode {
        parent,
        label: label.into(),
        length: Some(length),
    }
}

/// A comb of tips `t0`, `t1`, …, with a support at each inner node.
fn comb(tips: usize) -> Vec<TreeNode> {
    let mut nodes = vec![node(None, "", 0.0)];
    let mut above = 0;
    for tip in 0..tips - 1 {
        nodes.push(node(Some(above), &format!("t{tip}"), 0.5));
        if tip + 2 < tips {
            nodes.push(node(Some(above), &format!("{}", 50 + tip % 51), 0.25));
            above = nodes.len() - 1;
        }
    }
    nodes.push(node(Some(above), "last_one", 0.5));
    nodes
}

/// Values of an attribute, as numbers.
fn numbers(svg: &str, from: &str) -> Vec<f64> {
    let parts = svg.split(from).skip(1);
    let end = |part: &str| part.find(|c: char| !"0123456789.-".contains(c)).unwrap();
    parts
        .map(|part| part[..end(part)].parse().unwrap())
        .collect()
}

#[test]
fn every_name_and_support_is_there_and_inside_the_sheet() {
    for form in [TreeForm::Rectangular, TreeForm::Circular] {
        for tips in [3, 10, 60, 500] {
            let nodes = comb(tips);
            let options = TreeOptions {
                form,
                ..TreeOptions::default()
            };
            let svg = tree_picture(&nodes, &options);
            assert_eq!(svg.matches("class=\"name\"").count(), tips, "{form:?}");
            assert!(svg.contains(">last one</text>"));
            let inner = tips - 2;
            if tips <= 80 {
                assert_eq!(svg.matches("class=\"support\"").count(), inner);
            } else {
                let dots = svg.matches("<title>").count();
                // The picture's own title is one.
                assert_eq!(dots, inner + 1);
            }
            let (width, height) = (
                numbers(&svg, " width=\"")[0],
                numbers(&svg, " height=\"")[0],
            );
            for x in numbers(&svg, "translate(") {
                assert!((0.0..width).contains(&x), "{x} of {width}");
            }
            assert!(height >= 12.0 * tips as f64 || form == TreeForm::Circular);
            // The scale bar.
            assert!(svg.contains("class=\"bar\""));
        }
    }
}

#[test]
fn names_in_rows_do_not_touch() {
    let svg = tree_picture(&comb(500), &TreeOptions::default());
    let lines = svg.lines().filter(|line| line.contains("class=\"name\""));
    let mut rows: Vec<f64> = lines
        .map(|line| line.split("translate(").nth(1).unwrap())
        .map(|rest| rest.split([' ', ')']).nth(1).unwrap().parse().unwrap())
        .collect();
    rows.sort_by(f64::total_cmp);
    let size = numbers(&svg, "font-size=\"")[0];
    assert!(rows.windows(2).all(|two| two[1] - two[0] >= 1.2 * size));
    assert!(size >= 10.0, "{size}");
}

#[test]
fn colours_follow_the_page_and_the_reader() {
    let svg = tree_picture(&comb(5), &TreeOptions::default());
    assert!(svg.contains("prefers-color-scheme:dark"));
    assert!(svg.contains("stroke:#1f2328;stroke:var(--ink,#1f2328)"));
    let body = svg.split("</style>").nth(1).unwrap();
    assert!(
        !body.contains('#'),
        "a colour outside the style sheet: {body}"
    );
    let theme = TreeTheme::Dark;
    let dark = tree_picture(
        &comb(5),
        &TreeOptions {
            theme,
            ..TreeOptions::default()
        },
    );
    assert!(dark.contains("stroke:#e3e6ea}") && !dark.contains("var("));
}

#[test]
fn text_is_escaped() {
    let nodes = [
        node(None, "", 0.0),
        node(Some(0), "<script>&\"", 1.0),
        node(Some(0), "b\u{1}c", 1.0),
    ];
    let title = "a \"<b>".to_owned();
    let svg = tree_picture(
        &nodes,
        &TreeOptions {
            title,
            ..TreeOptions::default()
        },
    );
    assert!(!svg.contains("<script>"));
    assert!(svg.contains("&lt;script&gt;&amp;&quot;") && svg.contains(">bc</text>"));
    assert!(svg.contains("aria-label=\"a &quot;&lt;b&gt;\""));
}

#[test]
fn a_tree_without_lengths_has_no_scale() {
    let mut nodes = comb(6);
    nodes[2].length = None;
    let svg = tree_picture(&nodes, &TreeOptions::default());
    assert!(!svg.contains("class=\"bar\""));
    let (cladogram, keep_order) = (true, true);
    let options = TreeOptions {
        cladogram,
        keep_order,
        ..TreeOptions::default()
    };
    let svg = tree_picture(&comb(6), &options);
    assert!(!svg.contains("class=\"bar\""));
    // All tips end alike.
    let tips: Vec<f64> = svg
        .lines()
        .filter(|line| line.contains("class=\"name\""))
        .map(|line| numbers(line, "translate(")[0])
        .collect();
    assert!(tips.iter().all(|x| *x == tips[0]), "{tips:?}");
}

#[test]
fn one_tip_and_deep_trees_are_drawn() {
    let one = tree_picture(&[node(None, "alone", 0.0)], &TreeOptions::default());
    assert!(one.contains(">alone</text>"));
    let deep = comb(20_000);
    assert!(tree_picture(&deep, &TreeOptions::default()).len() > 1_000_000);
}

#[test]
fn lengths_of_the_bar_are_round() {
    for (most, expected) in [
        (0.37, "0.2"),
        (0.99, "0.5"),
        (1.0, "1"),
        (37.0, "20"),
        (0.0052, "0.005"),
    ] {
        assert_eq!(format!("{}", round_length(most)), expected);
    }
    assert_eq!(label("0.953333/98"), "0.95/98");
}
