//! Which of our templates an image of containers is here. None is fetched: the operator says what stands for it.

use cabana_e2b_wire::ImageRef;

use super::super::{
    control::base::{Found, of_operator},
    refused::Refused,
};
use crate::App;

/// What clients mean who name no image.
const USUAL: [(&str, &str); 1] = [("e2bdev/base", "base")];

/// The template that the settings name for it, or the usual one. `Ok(None)`: there is none.
fn named<'a>(images: impl Iterator<Item = (&'a str, &'a str)>, image: &ImageRef) -> Option<&'a str> {
    let mut all = images.chain(USUAL);
    all.find(|(known, _)| known.parse::<ImageRef>().is_ok_and(|known| known == *image)).map(|(_, template)| template)
}

/// `Err`: what is to be done so that there is one.
pub(super) async fn find(app: &App, image: &str) -> Result<Result<Found, String>, Refused> {
    let settings = app.runtime.settings();
    let images = settings.images.iter().map(|(known, template)| (known.as_str(), template.as_str()));
    let stands_for = image.parse::<ImageRef>().ok().and_then(|image| named(images, &image)).map(str::to_owned);
    let name = stands_for.as_deref().unwrap_or(image);
    if let Some(found) = of_operator(app, name).await? {
        return Ok(Ok(found));
    }
    Ok(Err(match stands_for {
        Some(template) => format!(
            "the image '{image}' stands for the template '{template}' here, and there is none: the operator makes it with \
             `cabana template add {template} --from oci:PATH`"
        ),
        None => format!(
            "the image '{image}' is not known here, and none is fetched: the operator imports it with `cabana template add NAME \
             --from oci:PATH` and sets images.map = [\"{image}=NAME\"], or names a template that is there already"
        ),
    }))
}

/// Whether a setting says which template an image is: both parts of it.
pub fn read_image(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').map(|(image, template)| (image.trim(), template.trim()));
    match parts {
        Some((image, template)) if image.parse::<ImageRef>().is_ok() && !template.is_empty() => {
            Ok((image.to_owned(), template.to_owned()))
        }
        _ => Err(format!(
            "{text:?} says of no image which template it is: write IMAGE=TEMPLATE, as in ubuntu:22.04=base"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_known_by_any_of_its_spellings() {
        let images = || [("ubuntu:22.04", "jammy"), ("docker.io/library/python", "python")].into_iter();
        let of = |image: &str| named(images(), &image.parse().unwrap());
        assert_eq!(of("docker.io/library/ubuntu:22.04"), Some("jammy"));
        assert_eq!(of("python:latest"), Some("python"));
        assert_eq!(of("e2bdev/base:latest"), Some("base"));
        assert_eq!((of("ubuntu:24.04"), of("ubuntu")), (None, None));
    }

    #[test]
    fn the_operator_may_say_what_the_usual_one_is() {
        let mine = [("e2bdev/base", "mine")].into_iter();
        assert_eq!(named(mine, &"e2bdev/base:latest".parse().unwrap()), Some("mine"));
    }

    #[test]
    fn a_setting_names_both() {
        assert_eq!(read_image("ubuntu:22.04 = base").unwrap(), ("ubuntu:22.04".into(), "base".into()));
        for bad in ["ubuntu", "=base", "ubuntu=", "a b=c"] {
            read_image(bad).unwrap_err();
        }
    }
}
