"""The image encoder beside a language model: enough to count its parameters and to list its operators."""

from typing import Final, Literal

from astra.spec.record import Spec, check, check_not_negative, check_positive

_MOST_LAYERS: Final = 10_000
_MOST_PIXELS: Final = 1_000_000


class Tower(Spec, frozen=True, kw_only=True):
    """A vision transformer and the connector that turns its patches into tokens of the language model.

    How many of a sample's tokens are of images is a matter of the data; ``share`` says what is assumed of them.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    patch: int  # pixels on a side
    image: int  # pixels on a side: patches of one image attend to each other
    merge: int  # patches on a side of the square that becomes one token
    connector: tuple[int, ...]  # widths of the projection to tokens, one after another; the last is the model's
    connectors: int = 1  # several, where layers of the model take up the output of several layers of the encoder
    connector_bias: bool = True
    share: float = 0.5  # of a sample's tokens that are of images
    channels: int = 3
    frames: int = 1  # of a film that one patch spans; an image is repeated
    gated_mlp: bool = False
    norm: Literal["rmsnorm", "layernorm"] = "layernorm"
    patch_bias: bool = True
    positions: int = 0  # rows of a learned table
    class_token: bool = False
    outer_norms: int = 0  # weights of the norms outside its layers
    window: int | None = None  # patches that see each other in the layers that do not see all
    full_layers: int = 0  # layers that see the whole image, where there is a window

    def __post_init__(self) -> None:
        check_positive("tower", layers=self.layers, hidden=self.hidden, ffn=self.ffn, heads=self.heads)
        check_positive("tower", patch=self.patch, image=self.image, merge=self.merge, channels=self.channels)
        check_positive("tower", frames=self.frames, connectors=self.connectors, window=self.window)
        check(self.layers <= _MOST_LAYERS, "tower.layers", self.layers, f"at most {_MOST_LAYERS:,}")
        check(self.image <= _MOST_PIXELS, "tower.image", self.image, f"at most {_MOST_PIXELS:,}")
        check_not_negative("tower", positions=self.positions, outer_norms=self.outer_norms, full=self.full_layers)
        check(self.hidden % self.heads == 0, "tower.heads", self.heads, f"a divisor of hidden={self.hidden}")
        square = self.patch * self.merge
        check(self.image % square == 0, "tower.image", self.image, f"a multiple of patch * merge = {square}")
        check(0 <= self.share <= 1, "tower.share", self.share, "a fraction of a sample's tokens, from 0 to 1")
        check(len(self.connector) >= 2, "tower.connector", self.connector, "two widths or more")
        check(all(width > 0 for width in self.connector), "tower.connector", self.connector, "widths of 1 or more")
        check(self.full_layers <= self.layers, "tower.full_layers", self.full_layers, f"at most {self.layers}")

    def roughly(self) -> int:
        """The count of its parameters to within a small factor."""
        tables = self.hidden * (self.positions + self.pixels) + self.outer_norms
        return (
            self.layers * self.hidden * (self.hidden + self.ffn) + self.connectors * max(self.connector) ** 2 + tables
        )

    @property
    def patches(self) -> int:
        """Patches of one image."""
        return (self.image // self.patch) ** 2

    @property
    def pixels(self) -> int:
        """Numbers of one patch."""
        return self.channels * self.frames * self.patch**2
