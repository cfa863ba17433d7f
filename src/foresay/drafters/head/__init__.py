"""What EagleDrafter and MtpDrafter are made of: a head over the target's features.

head      the protocol of a head, and its keys and values
drafter   HeadDrafter: their common part
tree      draft trees that grow where the head is confident
requests  how a request's sampling parameters change the head's ranking
"""
