use super::*;
use reqsign_core::{FileRead, Result as Found, StaticEnv};

/// The files of a home directory.
#[derive(Debug)]
struct Home;

impl FileRead for Home {
    async fn file_read(&self, path: &str) -> Found<Vec<u8>> {
        let text = match path {
            "/home/x/.aws/credentials" => {
                "[default]\naws_access_key_id = D\naws_secret_access_key=S\n\
                 [other]\naws_access_key_id = O\naws_secret_access_key = T\n\
                 aws_session_token = token\n"
            }
            "/home/x/.aws/config" => {
                "[default]\nregion = eu-central-1\n[profile other]\n# region = x\n\
                 region=eu-west-3\nendpoint_url = http://127.0.0.1:9000/\n\
                 [profile role]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = other\n"
            }
            _ => return Err(Error::unexpected("no such file")),
        };
        Ok(text.into())
    }
}

fn object(variables: &[(&str, &str)], bucket: &str) -> Result<Object, Fault> {
    let envs = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    let context = Context::new().with_file_read(Home).with_env(StaticEnv {
        home_dir: Some("/home/x".into()),
        envs,
    });
    Object::new(bucket, "a dir/ü+key", context)
}

#[test]
fn variables_come_before_files_and_profiles_are_told_apart() {
    let of = |variables: &[_]| {
        let object = object(variables, "b").expect("an object");
        let keys = object.keys.current().expect("keys").expect("keys");
        let (_, headers) = object.headers("bytes=0-9").expect("headers");
        let text = |name: &str| headers[name].to_str().expect("text").to_owned();
        let signed = text("authorization");
        assert!(signed.contains(&format!("Credential={}/", keys.access_key_id)));
        assert_eq!(text("range"), "bytes=0-9");
        let token = headers.get("x-amz-security-token");
        let token = token.map(|token| token.to_str().expect("text").to_owned());
        assert_eq!(token, keys.session_token);
        let region = signed.split('/').nth(2).expect("a region").to_owned();
        (object.url.to_string(), region, keys.access_key_id, token)
    };
    let place = "https://b.s3.eu-central-1.amazonaws.com/a%20dir/%C3%BC%2Bkey";
    let region = "eu-central-1".to_owned();
    assert_eq!(of(&[]), (place.to_owned(), region, "D".into(), None));
    let place = "http://127.0.0.1:9000/b/a%20dir/%C3%BC%2Bkey";
    assert_eq!(
        of(&[("AWS_PROFILE", "other")]),
        (
            place.to_owned(),
            "eu-west-3".into(),
            "O".into(),
            Some("token".into())
        )
    );
    let given = of(&[
        ("AWS_ACCESS_KEY_ID", "V"),
        ("AWS_SECRET_ACCESS_KEY", "W"),
        ("AWS_REGION", "us-west-2"),
    ]);
    assert!(given.0.contains(".us-west-2."), "{}", given.0);
    assert_eq!((&*given.2, given.3), ("V", None));
}

#[test]
fn dots_profiles_and_roles() {
    let dotted = object(&[], "a.b").expect("an object");
    assert_eq!(dotted.url.host_str(), Some("s3.eu-central-1.amazonaws.com"));
    let refused = |profile| {
        let object = object(&[("AWS_PROFILE", profile)], "b");
        object.err().expect("a fault").to_string()
    };
    assert!(refused("none").contains("no file of ~/.aws"));
    assert!(refused("role").contains("credential_process = aws"));
    let keys = [
        ("AWS_PROFILE", "role"),
        ("AWS_ACCESS_KEY_ID", "V"),
        ("AWS_SECRET_ACCESS_KEY", "W"),
    ];
    assert!(object(&keys, "b").is_ok());
}

#[test]
fn nothing_is_signed_where_keys_are_empty() {
    let keys = [
        ("AWS_PROFILE", "role"),
        ("AWS_ACCESS_KEY_ID", "V"),
        ("AWS_SECRET_ACCESS_KEY", ""),
    ];
    let object = object(&keys, "b").expect("an object");
    let (keys, headers) = object.headers("bytes=0-9").expect("headers");
    assert!(keys.is_none() && !headers.contains_key("authorization"));
}
