"""Check within seconds whether the hub of models and data sets responds."""

import threading
import urllib.error
import urllib.request

HUB_SECONDS = 3.0  # without a response the hub counts as unreachable


def hub_answers(endpoint: str) -> bool:
    """Return whether `endpoint` responds in time, through a proxy if one is set."""
    answered = threading.Event()

    def ask() -> None:
        request = urllib.request.Request(endpoint, method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=HUB_SECONDS):
                answered.set()
        except urllib.error.HTTPError:  # a response too, such as "not allowed"
            answered.set()
        except (OSError, ValueError):
            pass

    # In a thread, because a name lookup has no time limit.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(HUB_SECONDS)
    return answered.is_set()
