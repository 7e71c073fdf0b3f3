"""A generated scan of a rotating LiDAR in a street, for machines that have no point-cloud file.

Rays of a 64-beam sensor are cast against an uneven ground with kerbs, building fronts, cars, poles and
trees. Everything but ground and tree crowns is an upright prism, so one distance per azimuth and object,
found in the plane, serves all beams. Crowns let rays in to a random depth. What matters for a sparse
convolution is kept: density falling with distance, rings, occlusion, thin and scattered structures, noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spconv_compiler.errors import InputError
from spconv_compiler.io.readers import PointCloud

# Geometry and noise of a Velodyne HDL-64E as mounted for KITTI: 1.73 m above the road, two blocks of beams
# (+2 to -8.33 degrees, and down to -24.33), range error below 2 cm.
SENSOR_HEIGHT = 1.73
ELEVATION_BLOCKS = (2.0, -8.5, -24.33)
RANGE_NOISE = 0.015
MAX_RANGE = 85.0

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Prism:
    """An upright box or (if `round`) cylinder, metres, sensor at the origin, z up.

    x, y: centre. half_length, half_width: along and across `yaw` (radians). bottom, top: heights.
    reflectance: 0..1. A cylinder's radius is half_length.
    """

    x: float
    y: float
    half_length: float
    half_width: float
    yaw: float
    bottom: float
    top: float
    reflectance: float
    round: bool = False

    @property
    def reach(self) -> float:
        """Radius of the circle around the footprint."""
        return self.half_length if self.round else float(np.hypot(self.half_length, self.half_width))

    def interval(self, cos: Array, sin: Array) -> tuple[Array, Array]:
        """Horizontal distances at which rays enter and leave the footprint; enter > leave: missed."""
        if self.round:
            along = self.x * cos + self.y * sin
            missed_by = np.abs(self.y * cos - self.x * sin)
            half_chord = np.sqrt(np.maximum(self.half_length**2 - missed_by**2, 0.0))
            far = np.where(missed_by <= self.half_length, along + half_chord, -np.inf)
            return along - half_chord, far
        c, s = np.cos(self.yaw), np.sin(self.yaw)
        near, far = np.full_like(cos, -np.inf), np.full_like(cos, np.inf)
        for axis_x, axis_y, half in ((c, s, self.half_length), (-s, c, self.half_width)):
            centre, slope = self.x * axis_x + self.y * axis_y, cos * axis_x + sin * axis_y
            slope = np.where(np.abs(slope) < 1e-12, 1e-12, slope)
            first, second = (centre - half) / slope, (centre + half) / slope
            near = np.maximum(near, np.minimum(first, second))
            far = np.minimum(far, np.maximum(first, second))
        return near, far


@dataclass(frozen=True)
class Crown:
    """A ball of leaves: centre and radius in metres; rays go in to an exponentially distributed depth."""

    x: float
    y: float
    z: float
    radius: float
    mean_depth: float = 0.5
    reflectance: float = 0.3


def demo_scan(seed: int = 0, beams: int = 64, azimuths: int = 2083) -> PointCloud:
    """One revolution: about 125,000 points with the defaults, the same for the same arguments.

    Features are x, y, z (metres, sensor at the origin, x along the street, z up) and reflectance 0..1, as
    in a KITTI file. Points come beam by beam. Raises InputError for fewer than 2 beams or 8 azimuths.
    """
    if beams < 2 or azimuths < 8:
        raise InputError(f"beams={beams}, azimuths={azimuths}; accepted: at least 2 and 8")
    rng = np.random.default_rng(seed)
    prisms, crowns = _street(rng)
    elevation = np.interp(np.linspace(0.0, 1.0, beams), (0.0, 0.5, 1.0), ELEVATION_BLOCKS)
    slope = np.tan(np.radians(elevation + rng.normal(0.0, 0.02, beams)))
    azimuth = np.arange(azimuths) * (2.0 * np.pi / azimuths) - np.pi
    cos, sin = np.cos(azimuth), np.sin(azimuth)
    distance, reflectance = _cast_ground(slope, cos, sin)
    for prism in prisms:
        _cast_prism(prism, slope, cos, sin, distance, reflectance)
    for crown in crowns:
        _cast_crown(crown, slope, cos, sin, distance, reflectance, rng)
    return _measure(slope, cos, sin, distance, reflectance, rng)


def _street(rng: np.random.Generator) -> tuple[list[Prism], list[Crown]]:
    ground = -SENSOR_HEIGHT
    prisms: list[Prism] = []
    crowns: list[Crown] = []
    for side in (-1.0, 1.0):
        x = -95.0
        while x < 95.0:
            length, depth, height = rng.uniform(8, 22), rng.uniform(6, 12), rng.uniform(4, 14)
            y = side * (rng.uniform(9.0, 14.0) + depth / 2)
            yaw = rng.normal(0.0, 0.02)
            prisms.append(Prism(x + length / 2, y, length / 2, depth / 2, yaw, ground, height, rng.uniform(0.2, 0.6)))
            x += length + rng.choice([0.0, 3.0, 9.0])
        for x in np.arange(-90.0, 90.0, 7.0) + rng.uniform(-2, 2, 26):
            prisms.extend(_car(rng, x, side * rng.normal(5.2, 0.15)) if rng.random() < 0.55 else [])
        for x in np.arange(-80.0, 80.0, 16.0) + rng.uniform(-4, 4, 10):
            y, radius = side * rng.uniform(7.0, 8.0), rng.uniform(0.06, 0.12)
            prisms.append(Prism(x, y, radius, radius, 0.0, ground, rng.uniform(2.5, 6.0), 0.5, round=True))
        for x in np.arange(-80.0, 80.0, 11.0) + rng.uniform(-3, 3, 15):
            y, radius, crown = side * rng.uniform(7.5, 8.8), rng.uniform(0.12, 0.3), rng.uniform(1.2, 2.6)
            prisms.append(Prism(x, y, radius, radius, 0.0, ground, crown + 1.0, 0.2, round=True))
            crowns.append(Crown(x, y, crown + 1.0, crown))
        # A hedge or low wall in front of some houses.
        for x in rng.uniform(-60, 60, 5):
            prisms.append(
                Prism(x, side * 8.9, rng.uniform(2, 5), 0.2, 0.0, ground, ground + rng.uniform(0.7, 1.6), 0.3)
            )
    for x in (-34.0, -14.0, 11.0, 23.0, 45.0):
        prisms.extend(_car(rng, x + rng.uniform(-2, 2), rng.choice([-1.9, 1.9])))
    return prisms, crowns


def _car(rng: np.random.Generator, x: float, y: float) -> list[Prism]:
    ground, yaw, paint = -SENSOR_HEIGHT, rng.normal(0.0, 0.03), rng.uniform(0.1, 0.8)
    length, width, height = rng.normal(2.1, 0.15), rng.normal(0.88, 0.04), rng.normal(1.5, 0.1)
    body = Prism(x, y, length, width, yaw, ground + 0.2, ground + 0.6 * height, paint)
    cabin = Prism(x - 0.2, y, 0.55 * length, 0.9 * width, yaw, ground + 0.6 * height, ground + height, 0.15)
    return [body, cabin]


def _terrain(x: Array, y: Array) -> Array:
    """Ground height: a cambered road, kerbs at |y| = 6.2 m, gentle waves."""
    side = np.abs(y)
    kerb = np.where(side > 6.2, 0.12, -0.01 * side)
    waves = 0.05 * np.sin(0.21 * x + 0.13 * y) + 0.03 * np.sin(0.5 * y - 0.17 * x + 1.0)
    return kerb + waves - SENSOR_HEIGHT


def _cast_ground(slope: Array, cos: Array, sin: Array) -> tuple[Array, Array]:
    """Horizontal distance [beams, azimuths] to the ground (inf: none) and its reflectance."""
    falling = np.where(slope < -1e-4, slope, np.nan)[:, None]
    distance = np.broadcast_to(-SENSOR_HEIGHT / falling, (len(slope), len(cos)))
    for _ in range(4):  # fixed point of z = terrain; the terrain is flatter than all but grazing rays
        distance = _terrain(distance * cos, distance * sin) / falling
    y = np.abs(distance * sin)
    marking = (np.abs(y - 0.1) < 0.08) | (np.abs(y - 4.2) < 0.06)
    reflectance = np.where(marking, 0.75, np.where(y > 6.2, 0.35, 0.22))
    return np.where(distance > 0.0, distance, np.inf), reflectance


def _window(x: float, y: float, reach: float, azimuths: int) -> npt.NDArray[np.intp]:
    """Indices of the azimuths whose rays can meet a circle; all of them when the sensor is inside."""
    range_ = float(np.hypot(x, y))
    if range_ <= reach:
        return np.arange(azimuths)
    half = np.arcsin(reach / range_)
    step = 2.0 * np.pi / azimuths
    first = int(np.floor((np.arctan2(y, x) - half + np.pi) / step))
    last = int(np.ceil((np.arctan2(y, x) + half + np.pi) / step))
    return np.arange(first, last + 1) % azimuths


def _keep_nearer(window: npt.NDArray[np.intp], hit: Array, value: float, distance: Array, reflectance: Array) -> None:
    seen = distance[:, window]
    nearer = hit < seen
    distance[:, window] = np.where(nearer, hit, seen)
    reflectance[:, window] = np.where(nearer, value, reflectance[:, window])


def _cast_prism(prism: Prism, slope: Array, cos: Array, sin: Array, distance: Array, reflectance: Array) -> None:
    window = _window(prism.x, prism.y, prism.reach, len(cos))
    near, far = prism.interval(cos[window], sin[window])
    met = (near <= far) & (near > 0.0)
    window, near, far = window[met], near[met], far[met]
    steep = slope[:, None]
    height = steep * near
    side = (height >= prism.bottom) & (height <= prism.top)
    with np.errstate(divide="ignore"):
        at_top = prism.top / steep
    roof = (at_top > near) & (at_top < far) & (height > prism.top)
    hit = np.where(side, near, np.where(roof, at_top, np.inf))
    _keep_nearer(window, hit, prism.reflectance, distance, reflectance)


def _cast_crown(
    crown: Crown,
    slope: Array,
    cos: Array,
    sin: Array,
    distance: Array,
    reflectance: Array,
    rng: np.random.Generator,
) -> None:
    window = _window(crown.x, crown.y, crown.radius, len(cos))
    steep = slope[:, None]
    length2 = 1.0 + steep**2
    along = crown.x * cos[window] + crown.y * sin[window] + crown.z * steep
    outside2 = crown.x**2 + crown.y**2 + crown.z**2 - crown.radius**2
    half_chord = np.sqrt(np.maximum(along**2 - length2 * outside2, 0.0)) / length2
    enter, leave = along / length2 - half_chord, along / length2 + half_chord
    hit = enter + rng.exponential(crown.mean_depth, enter.shape) / np.sqrt(length2)
    hit = np.where((hit < leave) & (enter > 0.0), hit, np.inf)
    _keep_nearer(window, hit, crown.reflectance, distance, reflectance)


def _measure(
    slope: Array, cos: Array, sin: Array, distance: Array, reflectance: Array, rng: np.random.Generator
) -> PointCloud:
    """Adds noise and lost returns, and turns distances into points."""
    ray_length = np.sqrt(1.0 + slope**2)[:, None]
    measured = distance * ray_length
    lost = rng.random(measured.shape) < 0.03 + 0.25 * np.minimum(measured / MAX_RANGE, 1.0) ** 2
    beam, column = np.nonzero((measured < MAX_RANGE) & ~lost)
    along = distance[beam, column] + rng.normal(0.0, RANGE_NOISE, len(beam)) / ray_length[beam, 0]
    strength = np.clip(reflectance[beam, column] + rng.normal(0.0, 0.04, len(beam)), 0.0, 1.0)
    points = (along * cos[column], along * sin[column], along * slope[beam], strength)
    features = np.stack(points, axis=1).astype(np.float32)
    return PointCloud(np.ascontiguousarray(features[:, :3]), features, f"generated, {len(slope)} beams")
