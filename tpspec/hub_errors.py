"""What goes wrong between here and the Hugging Face Hub, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tpspec.config import CONFIG
from tpspec.errors import TpspecError
from tpspec.hub import ModelId


@contextmanager
def hub_errors(model: ModelId) -> Iterator[None]:
    """Turns what huggingface_hub raises into a TpspecError that says what to do."""
    try:
        yield
    except Exception as error:  # the errors of huggingface_hub, httpx and JSON share no base class
        message, remedy = _explain(error, model)
        raise TpspecError(message, remedy=remedy) from error


def _explain(error: Exception, model: ModelId) -> tuple[str, str]:
    host = constants.ENDPOINT
    login = "set HF_TOKEN or run `hf auth login`"
    match error:
        case HFValidationError():
            message = f"{model} is neither a path here nor the name of a model"
            remedy = "check the spelling"
        case GatedRepoError():
            message = f"{model} is gated: its terms must be accepted first"
            remedy = f"accept them at {host}/{model.name}, then {login}"
        case RepositoryNotFoundError():
            message = f"{model} is neither a path here nor a model on {host} that you may read"
            remedy = f"check the spelling; for a private model {login}"
        case RevisionNotFoundError():
            message = f"{model.name} has no revision {model.revision} on {host}"
            remedy = f"choose one of {host}/{model.name}/tree/main"
        case RemoteEntryNotFoundError():
            message = f"{model} has no {CONFIG} on {host}"
            remedy = "give a model in the format of transformers"
        case OfflineModeIsEnabled():
            message = (
                f"{model} is not complete in the cache {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE is set"
            )
            remedy = "unset HF_HUB_OFFLINE, or give a directory"
        case HfHubHTTPError() if error.response.status_code in {401, 403}:
            message = f"{host} refuses access to {model}"
            remedy = f"check your access token: {login}"
        case HfHubHTTPError() if error.response.status_code == 429:
            message = f"{host} answers no more requests for now"
            remedy = f"wait some minutes, or {login}"
        case _:
            lines = [line for line in str(error).splitlines() if line.strip()]
            message = f"cannot fetch {model} from {host}: {lines[0] if lines else type(error).__name__}"
            remedy = "check the network, or give a directory"
    return message, remedy
