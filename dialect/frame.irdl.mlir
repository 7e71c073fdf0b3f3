// Levels spconv and stages: a frame's coordinates, checked and brought to a place with room for more.
irdl.dialect @spconv {
  irdl.operation @place_coords {
    %coords = irdl.base "!spconv.coords"
    %words = irdl.base "!builtin.tensor"
    irdl.operands(coords: %coords, frame: optional %words)
    irdl.results()
  }
}
